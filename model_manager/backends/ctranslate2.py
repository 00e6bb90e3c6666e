"""CTranslate2 behind our loop: batches of requests with equal sampling parameters, token by token through its callback.

It has no continuous batching: a batch takes no request until it ends, but each request leaves it with its own last
token, and the batch shrinks. A folder of CTranslate2's own format (model.bin) is loaded as it is; another model is
converted at its first load, and kept. Options of `backend_options` are arguments of its Generator.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import msgspec

from ..engine.interface import Engine
from ..engine.scheduling.sequence import Sequence
from ..engine.scheduling.stopping import StopRules
from ..store.engine_formats import is_in_format
from ..wire.config import Dtype, ModelConfig, Option
from ..wire.errors import ConfigError, InvalidRequest, ModelLoadFailed
from ..wire.sampling import SamplingParams
from ..wire.status import ModelInfo
from .conversions import converted
from .dtypes import computing_dtype, declared_dtype
from .engine_options import in_range, of_type
from .engine_words import one_line
from .hosted import Event, HostedEngine
from .model_files import eos_token_ids, longest, read_json
from .single_floats import above_zero, cut, is_sampled

_UNLIMITED = 10**9
"""From here on, a tokenizer's `model_max_length` means that there is none."""
_CONVERT = "import sys; from ctranslate2.converters.transformers import main; main()"
_WITHIN = 0.02
"""Seconds that `poll` waits for tokens."""
_MOST_ON_CPU = 32
"""Requests of a batch on a CPU: 16 gave a tenth fewer tokens a second, and 96 prompts of equal length half as many."""
_PAUSE, _LONGEST_WAIT = 0.05, 0.3
"""Seconds: a batch begins once no request has come for so long, or after so long in all."""
_OPTION_DEFAULTS = {
    "device_index": 0,
    "inter_threads": 1,
    "max_queued_batches": 0,
    "flash_attention": False,
    "tensor_parallel": False,
}
_OPTION_RANGES = {"device_index": (0, 2**31 - 1), "inter_threads": (1, 1024), "max_queued_batches": (-1, 2**31 - 1)}
"""The least and the largest value of each option that is a number; -1 batches are queued without a limit."""
_ENGINES_FAULT = re.compile("out of memory|bad_alloc|CUDA|cuBLAS|cuDNN", re.IGNORECASE)
"""What an error says that is the engine's or the device's, and no request's."""


def load(config: ModelConfig, folder: Path) -> Engine:
    """The engine of a folder, which CTranslate2 runs; raises ModelLoadFailed where it cannot convert the model."""
    import ctranslate2

    started = time.monotonic()
    options = {name: _option(name, value) for name, value in config.backend_options.items()}
    device = "cuda" if config.device == "cuda" else "cpu"
    try:
        supported = ctranslate2.get_supported_compute_types(device)
    except RuntimeError as error:
        raise ConfigError(f"device={config.device!r}: CTranslate2: {one_line(error)}") from error
    made = _as_it_is if is_in_format(folder, "ctranslate2") else _of_checkpoint
    model = made(config, folder, supported)
    try:
        generator = ctranslate2.Generator(
            str(model.folder),
            device=device,
            compute_type=model.compute_type,
            intra_threads=config.num_threads or len(os.sched_getaffinity(0)),
            **options,
        )
    except (RuntimeError, ValueError) as error:
        raise ModelLoadFailed(f"{config.model}: CTranslate2: {one_line(error)}") from error
    quantization, _, dtype = generator.compute_type.rpartition("_")
    info = ModelInfo(
        name=config.model,
        folder=str(folder),
        architecture=model.architecture,
        dtype=dtype,
        device=generator.device,
        vocab_size=len(model.vocabulary),
        max_model_len=model.max_len,
        max_num_seqs=config.max_num_seqs,
        num_blocks=0,
        block_size=0,
        eos_token_ids=model.eos,
        load_seconds=time.monotonic() - started,
        quantization=quantization or "none",
        revision=config.revision or "",
    )
    most = min(config.max_num_seqs, _MOST_ON_CPU) if generator.device == "cpu" else config.max_num_seqs
    library = _CTranslate2(generator, model.vocabulary, most, model.eos)
    return HostedEngine(info, library, StopRules.load(folder, model.eos))


def _option(name: str, value: Option) -> Option:
    """The value, checked; raises ConfigError for one that CTranslate2 does not take."""
    checked = of_type(name, value, _OPTION_DEFAULTS[name])
    if name in _OPTION_RANGES:
        in_range(name, checked, *_OPTION_RANGES[name])
    return checked


@dataclass(frozen=True)
class _Model:
    """A folder in CTranslate2's format, and what is read from other files than its own."""

    folder: Path
    vocabulary: list[str]
    eos: list[int]
    compute_type: str
    max_len: int
    architecture: str = ""


def _of_checkpoint(config: ModelConfig, folder: Path, supported: Collection[str]) -> _Model:
    fields = read_json(folder / "config.json")
    dtype = _dtype(config, declared_dtype(fields), supported)
    found = _converted(config, folder, dtype)
    return _Model(
        found,
        _vocabulary(found),
        eos_token_ids(folder),
        compute_type=dtype if config.quantization == "none" else f"int8_{dtype}",
        max_len=longest(config, fields),
        architecture=next(iter(fields.get("architectures", [])), ""),
    )


def _dtype(config: ModelConfig, declared: str, supported: Collection[str]) -> str:
    """What it computes in, among its `supported` compute types: with int8 weights it pairs them with fewer types."""
    prefix = "" if config.quantization == "none" else f"{config.quantization}_"
    types = [dtype for dtype in get_args(Dtype) if f"{prefix}{dtype}" in supported]
    return computing_dtype(config, declared, types, "CTranslate2")


def _as_it_is(config: ModelConfig, folder: Path, supported: Collection[str]) -> _Model:
    """Its config.json is CTranslate2's own: the end-of-sequence token's text, and nothing of lengths."""
    vocabulary = _vocabulary(folder)
    eos = eos_token_ids(folder)
    ending = read_json(folder / "config.json").get("eos_token")
    if not eos and ending in vocabulary:
        eos = [vocabulary.index(ending)]
    declared = read_json(folder / "tokenizer_config.json").get("model_max_length")
    known = declared if isinstance(declared, int) and declared < _UNLIMITED else None
    if (longest := config.max_model_len or known) is None:
        raise ConfigError(
            f"max_model_len: {config.model} is in CTranslate2's format, and no file says how long it may be: set it"
        )
    given = config.dtype if config.dtype == "auto" else _dtype(config, config.dtype, supported)
    kept = given if given != "auto" else "default"
    quantized = "int8" if given == "auto" else f"int8_{given}"
    return _Model(folder, vocabulary, eos, kept if config.quantization == "none" else quantized, longest)


def _vocabulary(folder: Path) -> list[str]:
    return msgspec.json.decode((folder / "vocabulary.json").read_bytes(), type=list[str])


def _converted(config: ModelConfig, folder: Path, dtype: str) -> Path:
    from importlib.metadata import version

    weights = "int8" if config.quantization == "int8" else dtype

    def make(place: Path) -> None:
        arguments = ["--model", str(folder), "--output_dir", str(place), "--quantization", weights]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-c", _CONVERT, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "nothing")
            raise ModelLoadFailed(f"{config.model}: the conversion to CTranslate2's format failed: {last}")

    return converted(config, f"ctranslate2-{weights}-{version('ctranslate2')}", make)


@dataclass(frozen=True)
class _Group:
    """Parameters that are a batch's, not a request's."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    min_tokens: int
    ignore_eos: bool


@dataclass
class _Generation:
    """A request that waits or runs."""

    name: str
    tokens: list[str]
    most: int
    group: _Group
    count: int = 0
    over: bool = False
    """It has its last token."""
    cancelled: bool = False
    """None of its events is told any more, not even to a request that has its name after it."""


_Told = list[tuple[_Generation, Event]]


@dataclass
class _Steps:
    """Gathers the events of a step of a batch: each wakes the loop once, which then holds up the generating thread."""

    events: queue.SimpleQueue[_Told | Exception]
    step: int = 0
    told: _Told = field(default_factory=list)

    def add(self, step: int, asked: _Generation, event: Event) -> None:
        """An event of that step; those of the step before are all there now."""
        if step != self.step:
            self.tell()
            self.step = step
        self.told.append((asked, event))

    def tell(self) -> None:
        """Hand over what is gathered."""
        if self.told:
            self.events.put(self.told)
            self.told = []


@dataclass
class _CTranslate2:
    """Its generator as a Library. A thread of its own runs the batches; what they generate comes through a queue."""

    generator: Any
    vocabulary: list[str]
    batch_size: int
    eos: list[int]
    events: queue.SimpleQueue[_Told | Exception] = field(default_factory=queue.SimpleQueue)
    """A batch's events, a step at a time. An exception is the engine's own: it ends the process."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: OrderedDict[str, _Generation] = field(default_factory=OrderedDict)
    running: dict[str, _Generation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        threading.Thread(target=self._run, name="ctranslate2", daemon=True).start()

    def submit(self, sequence: Sequence, params: SamplingParams) -> None:
        made = sequence.num_output_tokens
        group = _Group(
            params.temperature if is_sampled(params) else 0.0,
            cut(params.top_k, len(self.vocabulary)),
            above_zero(params.top_p),
            above_zero(params.repetition_penalty),
            max(0, params.min_tokens - made),
            params.ignore_eos,
        )
        tokens = [self.vocabulary[token] for token in sequence.token_ids]
        asked = _Generation(sequence.request_id, tokens, sequence.conditions.max_tokens - made, group)
        with self.changed:
            self.waiting[sequence.request_id] = asked
            self.changed.notify()

    def cancel(self, request_id: str) -> None:
        with self.changed:
            self.waiting.pop(request_id, None)
            if (asked := self.running.pop(request_id, None)) is not None:
                asked.cancelled = True

    def poll(self) -> list[Event]:
        try:
            told = [self.events.get(timeout=_WITHIN)]
        except queue.Empty:
            return []
        while not self.events.empty():
            told.append(self.events.get())
        events: list[Event] = []
        for each in told:
            if isinstance(each, Exception):
                raise each
            events += [event for asked, event in each if not asked.cancelled]
        for event in events:
            if event.finished or event.error is not None:
                self.running.pop(event.request_id, None)
        return events

    def num_running(self) -> int:
        return len(self.running)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting)
                self._gather()
                batch = self._next_batch()
            try:
                if batch:
                    self._answer(batch)
            except Exception as error:
                self.events.put(error)  # `poll` raises it, and the requests go on in another process
                return

    def _gather(self) -> None:
        """Wait while requests keep coming: one that comes a moment late waits for a whole batch."""
        until = time.monotonic() + _LONGEST_WAIT
        while time.monotonic() < until and self.changed.wait(_PAUSE):
            pass

    def _next_batch(self) -> list[_Generation]:
        """The request that waits longest, and requests of about its length that have the same parameters.

        CTranslate2 takes the prompts of a batch together as far as the shortest one goes, and then token by token: 8
        prompts of 16 to 130 tokens cost ten times as much as 8 of 60.
        """
        if not self.waiting:
            return []
        oldest = next(iter(self.waiting.values()))
        alike = sorted(
            (asked for asked in self.waiting.values() if asked.group == oldest.group),
            key=lambda asked: len(asked.tokens),
        )
        place = next(place for place, asked in enumerate(alike) if asked is oldest)
        start = place - place % self.batch_size
        batch = alike[start : start + self.batch_size]
        for asked in batch:
            self.running[asked.name] = self.waiting.pop(asked.name)
        return batch

    def _answer(self, batch: list[_Generation]) -> None:
        """Run a batch; where it is refused, each of its requests alone, so that only those which are refused alone
        fail. Raises what is no request's fault: an error of the engine, or one after the first tokens.
        """
        try:
            self._generate(batch)
        except (RuntimeError, ValueError) as error:
            begun = any(asked.count for asked in batch)
            if begun or _ENGINES_FAULT.search(str(error)):
                raise
            if len(batch) == 1:
                refused = InvalidRequest(f"CTranslate2: {one_line(error)}")
                self.events.put([(batch[0], Event(batch[0].name, error=refused))])
                return
            for asked in batch:
                if not asked.cancelled:
                    self._answer([asked])

    def _generate(self, batch: list[_Generation]) -> None:
        group = batch[0].group
        steps = _Steps(self.events)

        def told(step: Any) -> bool:
            """Called with each token; true ends that request."""
            asked: _Generation = batch[step.batch_id]
            if asked.cancelled or asked.over:
                return True
            asked.count += 1
            asked.over = asked.count >= asked.most or (step.token_id in self.eos and not group.ignore_eos)
            steps.add(step.step, asked, Event(asked.name, [step.token_id], finished=asked.over))
            return asked.over

        sampled = group.temperature > 0
        self.generator.generate_batch(
            [asked.tokens for asked in batch],
            max_length=max(asked.most for asked in batch),
            min_length=max(asked.most for asked in batch) if group.ignore_eos else group.min_tokens,
            sampling_topk=group.top_k if sampled else 1,
            sampling_topp=group.top_p,
            sampling_temperature=group.temperature if sampled else 1.0,
            repetition_penalty=group.repetition_penalty,
            end_token=[] if group.ignore_eos else [self.vocabulary[token] for token in self.eos],
            include_prompt_in_result=False,
            callback=told,
        )
        for asked in batch:
            if not asked.over:  # it ended by itself, with a token that it did not tell
                last = [] if group.ignore_eos else self.eos[:1]
                steps.told.append((asked, Event(asked.name, last, finished=True)))
        steps.tell()
