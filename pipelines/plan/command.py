"""`millrace plan`: workers, hours and money of a job, from the tokens of its input, one worker's speed, and prices."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from fractions import Fraction

from millrace.model_manager.client.encoding import Encoding
from millrace.model_manager.store.gguf import is_gguf
from millrace.model_manager.wire.backends import BACKENDS, Backend
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest, ModelError
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.addresses import parse as parse_address
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.files.file_systems import use_surroundings
from millrace.transforms.requests.model_transform import chat_with

from ..edge import at_the_edge
from ..flags.backend import check_engine_flags, read_backend
from ..flags.machines import GpuRequest, cpu_machine, disk_needed, machine_type, memory_needed
from ..places.checkpoint_size import weights_bytes
from .estimate import Estimate, Terms, Work, WorkerSpeed, for_deadline, ladder, with_workers, work_hours
from .plan_flags import CHAT, plan_parser
from .prices import Prices, exactly
from .report import Machine, Plan, as_json, as_text
from .speed import measured_speed
from .token_counts import TokenCounts, count_tokens, load_encoding, mean_generated

_MOST_PREEMPTIONS = 60
_HOURS = {"m": Fraction(1, 60), "h": Fraction(1), "d": Fraction(24)}


def main(arguments: Sequence[str]) -> int:
    """Print the plan; returns the exit status."""
    return at_the_edge(lambda: _plan(arguments), verbose="--verbose" in arguments)


def _plan(arguments: Sequence[str]) -> int:
    flags = plan_parser().parse_args(list(arguments))
    use_surroundings()
    _check(flags)
    plan = make_plan(flags)
    print(json.dumps(as_json(plan), indent=1) if flags.json else "\n".join(as_text(plan)))
    return 0


def _check(flags: argparse.Namespace) -> None:
    if not flags.input:
        raise ConfigError("--input is missing: takes one or more files or globs")
    for name in ("tokens_per_second", "prompt_tokens_per_second", "workers", "disk_size_gb"):
        value = getattr(flags, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"--{name} {shown(value)}: takes a number above 0")
    for name in ("sample", "startup_minutes", "margin", "output_tokens"):
        value = getattr(flags, name)
        if value is not None and not 0 <= value < math.inf:
            raise ConfigError(f"--{name} {shown(value)}: takes 0 or more")
    if not 0 <= flags.preemptions_per_hour <= _MOST_PREEMPTIONS:
        raise ConfigError(f"--preemptions_per_hour {shown(flags.preemptions_per_hour)}: takes 0 to {_MOST_PREEMPTIONS}")


def make_plan(flags: argparse.Namespace) -> Plan:
    """Count, then reckon; raises ConfigError or ModelError."""
    params = _params(flags)
    backend = _backend(flags, params)
    counted = _counted(flags, params)
    per_row, said = _generated_per_row(flags, counted)
    generated = per_row * counted.readable * counted.scale
    work = Work(counted.prompt_tokens * counted.scale, generated)
    speed, measured = _speed(flags)
    machine = _machine(flags, backend)
    prices = Prices.read(flags.prices) if flags.prices else None
    parts = prices.parts(machine.name, machine.gpu, machine.disk_gb) if prices else {}
    terms = Terms(
        startup=exactly(flags.startup_minutes) / 60,
        margin=exactly(flags.margin),
        hourly=sum(parts.values(), Fraction(0)) if prices else None,
        preemptions=exactly(flags.preemptions_per_hour),
    )
    hours = work_hours(work, speed, terms)
    estimates = _estimates(flags, hours, terms)
    return Plan(counted, work, said, speed, measured, backend, machine, prices, parts, terms, estimates)


def _backend(flags: argparse.Namespace, params: SamplingParams) -> Backend:
    """The engine that answers; raises ConfigError for what it cannot be asked."""
    model = ModelConfig.parse({"model": flags.model} | read_backend(flags))
    check_engine_flags(model, "generate", params)
    backend = BACKENDS[model.backend]
    if flags.gpu != "none" and not backend.uses_gpus:
        raise ConfigError(f"--gpu {flags.gpu}: the back end {backend.name} uses no NVIDIA GPU; leave it out")
    return backend


def _encoding(flags: argparse.Namespace, chat: bool | None) -> Encoding:
    """What counts; raises ConfigError where the engine alone has the tokenizer."""
    model = flags.tokenizer or flags.model
    try:
        if is_gguf(model):
            raise ConfigError(f"--model {model}: the tokenizer is in the file")
        return load_encoding(model, None if flags.tokenizer else flags.revision, chat)
    except (ConfigError, ModelError) as error:
        raise ConfigError(f"{error}; --tokenizer takes a model in safetensors format that has the same one") from None


def _params(flags: argparse.Namespace) -> SamplingParams:
    try:
        return SamplingParams(max_tokens=flags.max_tokens, n=flags.n)
    except InvalidRequest as error:
        raise ConfigError(str(error)) from None


def _estimates(flags: argparse.Namespace, hours: Fraction, terms: Terms) -> list[Estimate]:
    if flags.workers and flags.deadline:
        raise ConfigError("--workers and --deadline exclude each other: one follows from the other")
    if flags.deadline:
        return [for_deadline(hours, _hours(flags.deadline), terms)]
    return [with_workers(hours, flags.workers, terms)] if flags.workers else ladder(hours, terms)


def _counted(flags: argparse.Namespace, params: SamplingParams) -> TokenCounts:
    shape = RowShape(
        prompt_column=flags.prompt_column,
        id_column=flags.id_column,
        row_params=flags.row_params,
        template=flags.template,
    )
    chat = chat_with(flags.system, {"chat": CHAT[flags.chat]})["chat"]
    return count_tokens(
        [_files(given) for patterns in flags.input for given in patterns],
        _encoding(flags, chat),
        params,
        shape,
        system=flags.system,
        input_format=flags.input_format,
        sample=flags.sample or None,
    )


def _files(given: str) -> str:
    """Raises ConfigError for a stream."""
    try:
        address = parse_address(given)
    except ConfigError as error:
        raise ConfigError(f"--input {error}") from None
    if address.is_stream:
        raise ConfigError(f"--input {given}: is a stream, which has no end to plan for; takes files or globs")
    return given


def _generated_per_row(flags: argparse.Namespace, counted: TokenCounts) -> tuple[Fraction, str]:
    """Tokens generated for a row that is a prompt, and the source of that number."""
    if flags.output_tokens is not None and flags.trial:
        raise ConfigError("--output_tokens and --trial exclude each other: leave one out")
    if flags.output_tokens is not None:
        return exactly(flags.output_tokens), "what --output_tokens says"
    if flags.trial:
        return mean_generated(flags.trial), f"the mean of {' '.join(flags.trial)}"
    return Fraction(counted.most_generated, counted.readable), "the most that max_tokens of rows and flags allow"


def _speed(flags: argparse.Namespace) -> tuple[WorkerSpeed, str]:
    if flags.results and flags.tokens_per_second:
        raise ConfigError("--results and --tokens_per_second exclude each other")
    prompt = exactly(flags.prompt_tokens_per_second) if flags.prompt_tokens_per_second else None
    if flags.results:
        found = measured_speed(flags.results, flags.where)
        return WorkerSpeed(exactly(found.tokens_per_s), prompt), str(found)
    generated = exactly(flags.tokens_per_second) if flags.tokens_per_second else None
    return WorkerSpeed(generated, prompt), "as given"


def _machine(flags: argparse.Namespace, backend: Backend) -> Machine:
    """What a job with these flags would run on."""
    gpu = GpuRequest.parse(flags.gpu)
    _check_family(flags.machine_type, gpu)
    known = bool(flags.machine_type and flags.disk_size_gb) or backend.servers == "remote"
    weights_gb = 0.0 if known else _weights_gb(flags.model, flags.revision)
    memory = memory_needed(weights_gb, on_gpu=gpu is not None)
    chosen = flags.machine_type or (gpu.smallest_machine(memory) if gpu else cpu_machine(memory)).name
    return Machine(chosen, gpu, flags.disk_size_gb or disk_needed(weights_gb))


def _check_family(name: str | None, gpu: GpuRequest | None) -> None:
    """A machine that Google Cloud has; others are known from the prices alone."""
    if name and gpu and machine_type(name) and not name.startswith(gpu.gpu.family):
        raise ConfigError(f"--machine_type {name}: --gpu {gpu.gpu.name} goes with machines of {gpu.gpu.family}…")


def _weights_gb(model: str, revision: str | None) -> float:
    try:
        return weights_bytes(model, revision) / 1e9
    except ModelError as error:
        raise ConfigError(f"{error}; give --machine_type and --disk_size_gb, which are chosen by that") from None


def _hours(text: str) -> Fraction:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text)
    if not found:
        raise ConfigError(f"--deadline {text}: takes minutes, hours or days, as 90m, 6h or 2d")
    return Fraction(found[1]) * _HOURS[found[2]]
