"""The flags of the commands that run jobs, parsed once into frozen settings. All other flags go to Beam."""

from __future__ import annotations

import argparse
import functools
import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from millrace.model_manager.grammars.compiling import check as check_constraint
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest
from millrace.model_manager.wire.json_text import canonical
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.traces import Traces
from millrace.transforms.addresses import Address, Files
from millrace.transforms.addresses import parse as parse_address
from millrace.transforms.models.model_names import further_models
from millrace.transforms.models.updates import WatchedFile
from millrace.transforms.runners import PRISM, Runner, runner_of
from millrace.transforms.tasks import TaskName, TaskSettings
from millrace.transforms.writing.output_files import IfExists, OutputFiles, output_and_format

from .backend import check_engine_flags, read_backend
from .beam import beam_options, complete
from .dataflow import check_dataflow
from .file_flags import constraint_fields, told_of_constraint
from .from_settings import given
from .job_flags import CHAT, job_parser
from .machines import GpuRequest
from .parser import NO_INPUT
from .shared_flags import log_level
from .task_commands import TASKS, TaskCommand
from .trace_flags import read_traces

_DATAFLOWS = "--labels"
"""A flag with two meanings: the labels of classify, and Beam's labels of a job on Dataflow."""


@dataclass(frozen=True)
class JobOptions:
    """All settings of a job."""

    input: list[Address]
    input_format: str | None
    prompt_column: str | None
    id_column: str | None
    row_params: bool
    limit: int | None
    """Rows to read, at most."""
    output: Address
    output_format: str | None
    num_shards: int | None
    window: float | None
    """Seconds of a stream that one set of files holds."""
    lateness: float | None
    """Seconds after a window's end in which its rows may still come."""
    dead_letters: Address | None
    if_exists: IfExists
    model: ModelConfig
    chat: bool | None
    sampling: SamplingParams
    manager: ManagerConfig
    fail_fast: bool
    report: str
    """The file of the job's report; empty for none."""
    prices: str | None
    """A file of prices, by which the report tells what the job costs."""
    quiet: bool
    verbose: bool
    log_level: str
    beam: PipelineOptions
    task: TaskCommand
    settings: TaskSettings
    """The task's own settings."""
    models: tuple[ModelConfig, ...] = ()
    """Further models, for rows that name them."""
    updates: WatchedFile | None = None
    """What names the model while the job runs."""
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tells the job from all others. A job that is resumed keeps it (places/provenance.py)."""
    gpu: GpuRequest | None = None
    """GPUs of a worker on Dataflow."""
    dry_run: bool = False
    """Show what would be submitted, and submit nothing."""
    traces: Traces | None = None
    """Where spans of rows and requests go."""
    resource_hints: dict[str, str] = field(default_factory=dict)
    """Beam's resource hints for the step that runs the model."""

    @functools.cached_property
    def job(self) -> str:
        """Names the job's requests in the manager, and the job in `millrace ps`.

        The ids of the requests are made of it, their rows and their parameters. So it stands for all else that their
        answers depend on: a job that is resumed with other settings finds no request of the one before.
        """
        settings = canonical((self.identity, self.model.key, [each.key for each in self.models], self.chat))
        return f"{self.task.command} to {self.output}, {hashlib.sha256(settings).hexdigest()[:16]}"

    @property
    def source(self) -> Address:
        """The first input: the only one, or of the same kind as all others."""
        return self.input[0]

    @property
    def is_stream(self) -> bool:
        """Whether the job goes on until it is stopped."""
        return any(address.is_stream for address in self.input)

    @property
    def runner(self) -> Runner:
        """Where the job runs: a stream that names no runner on Prism."""
        is_named = bool(self.beam.view_as(StandardOptions).runner)
        return PRISM if self.is_stream and not is_named else runner_of(self.beam)

    @property
    def letters(self) -> Address:
        """Where dead letters go."""
        return self.dead_letters or self.output

    @property
    def template(self) -> str | None:
        """What makes prompts of rows' columns."""
        return None if self.task.documents else getattr(self.settings, "template", None)

    @property
    def stateful(self) -> bool:
        """Whether what is in flight is kept in the runner's state."""
        return getattr(self.settings, "stateful", False)


def parse(arguments: Sequence[str], name: TaskName = "generate") -> JobOptions:
    """Raises ConfigError, one sentence, for anything wrong; `--help` prints and exits 0."""
    task = TASKS[name]
    known, names, beam = _read(arguments, task)
    FileSystems.set_options(beam)  # flags name files of stores that are read here, such as --constraint
    inputs = [_address("--input", each, beam) for given in known.input for each in given]
    output = _address("--output", known.output, beam)
    complete(beam, is_stream=any(address.is_stream for address in inputs))
    model, models = _models(known, ModelConfig.parse(given(known, names["model"]) | read_backend(known)).for_task(name))
    sampling = _sampling({**task.defaults} | given(known, names["sampling"]))
    check_engine_flags(model, task.name, sampling)
    return JobOptions(
        input=inputs,
        input_format=known.input_format,
        prompt_column=known.text_column if task.documents else known.prompt_column,
        id_column=known.id_column,
        row_params=known.row_params,
        limit=known.limit,
        output=output,
        output_format=known.output_format,
        num_shards=known.num_shards,
        window=known.window,
        lateness=known.lateness,
        dead_letters=_address("--dead_letters", known.dead_letters, beam) if known.dead_letters else None,
        if_exists="overwrite" if known.overwrite else "resume" if known.resume else "refuse",
        model=model,
        models=models,
        chat=CHAT[known.chat],
        sampling=sampling,
        manager=runner_of(beam).manager_config(given(known, names["manager"]), is_resumable=isinstance(output, Files)),
        fail_fast=known.fail_fast,
        report=_report(known, beam, is_stream=any(address.is_stream for address in inputs)),
        prices=known.prices,
        quiet=known.quiet,
        verbose=known.verbose,
        log_level=log_level(known),
        beam=beam,
        task=task,
        updates=WatchedFile.parse(known.model_updates, known.model_updates_every) if known.model_updates else None,
        gpu=GpuRequest.parse(known.gpu),
        dry_run=known.dry_run,
        settings=task.read_flags(known, names["task"]),
        traces=read_traces(known),
    )


def _read(
    arguments: Sequence[str], task: TaskCommand
) -> tuple[argparse.Namespace, dict[str, list[str]], PipelineOptions]:
    """Our flags, the names of the settings among them, and Beam's options from all other flags."""
    parser, names = job_parser(task)
    known, rest = parser.parse_known_args(list(arguments))
    _check_commands(rest, task)
    helps = {flag: action.help or "" for flag, action in parser.flags.items() if flag.startswith("--")}
    own_flags = {flag: text.replace("%%", "%") for flag, text in helps.items()}
    beam = beam_options(rest, own_flags)
    if not known.input:
        raise ConfigError(NO_INPUT)
    if known.overwrite and known.resume:
        raise ConfigError("--overwrite and --resume exclude each other: leave one out")
    check_dataflow(known, beam)
    return known, names, beam


def _models(known: argparse.Namespace, model: ModelConfig) -> tuple[ModelConfig, tuple[ModelConfig, ...]]:
    """The model of rows that name none, and further models: `--models` are all of them, or those beside `--model`."""
    if known.models is None:
        return model, ()
    names = [name.strip() for name in known.models.split(",")]
    if not all(names):
        raise ConfigError(f"--models {known.models}: takes names of models with commas between them")
    if known.model_updates:
        raise ConfigError("--models and --model_updates exclude each other: leave one out")
    if known.model is None:
        model, names = msgspec.structs.replace(model, model=names[0]), names[1:]
    further = further_models(model, [name for name in names if name != model.model])
    if not further:
        raise ConfigError(f"--models {known.models}: takes two models or more; one alone is --model {model.model}")
    return model, further


def _report(known: argparse.Namespace, beam: PipelineOptions, *, is_stream: bool) -> str:
    """The file's name: as given, or else beside an output of files of a job that ends and is waited for."""
    if known.report and runner_of(beam).is_on_google_cloud:
        raise ConfigError("--report: a job on Dataflow is not waited for, and has no report; leave it out")
    if isinstance(known.report, str):
        if not known.report.strip():
            raise ConfigError("--report '': takes the path of a file; without one the report is beside --output")
        return known.report
    address = _address("--output", known.output, beam)
    if not isinstance(address, Files):
        if known.report:
            raise ConfigError(f"--report: takes the path of a file, since --output {address} is a topic")
        return ""
    is_waited_for = not is_stream and not runner_of(beam).is_on_google_cloud
    wanted = known.report is True or (known.report is None and is_waited_for)
    return f"{OutputFiles(output_and_format(address.path, None)[0]).prefix}.report.html" if wanted else ""


def _check_commands(flags: Sequence[str], task: TaskCommand) -> None:
    """Raises ConfigError for a flag that other commands take and this one does not."""
    names = dict.fromkeys(flag.split("=")[0] for flag in flags if flag.startswith("--"))
    if any("dataflow" in flag.lower() for flag in flags):
        names.pop(_DATAFLOWS, None)
    for name in names:
        commands = [each.command for each in TASKS.values() if each is not task and name in _flags(each.name)]
        if commands:
            *others, last = commands
            takers = f"{', '.join(others)} and {last} take it" if others else f"{last} takes it"
            raise ConfigError(f"{name}: millrace {task.command} does not take it; {takers}")


@functools.cache
def _flags(name: TaskName) -> frozenset[str]:
    return frozenset(job_parser(TASKS[name])[0].flags)


def _address(flag: str, given: str, beam: PipelineOptions) -> Address:
    """Workers elsewhere start in other folders than this process, so their paths are absolute."""
    if not given.strip():
        raise ConfigError(f"{flag} '{given}': takes a path or a stream's address, got none")
    try:
        address = parse_address(given)
    except ConfigError as error:
        raise ConfigError(f"{flag} {error}") from None
    return address if runner_of(beam).is_local else address.absolute()


def _sampling(fields: dict[str, Any]) -> SamplingParams:
    """Raises ConfigError also for a constraint that the engine would refuse with every row."""
    constraint = fields.get("constraint")
    if constraint is not None:
        fields = fields | {"constraint": constraint_fields(constraint)}
    try:
        sampling = SamplingParams.parse(fields)
        if sampling.constraint is not None:
            check_constraint(sampling.constraint)
    except InvalidRequest as error:
        if constraint is None or not str(error).startswith("constraint"):
            raise ConfigError(str(error)) from None
        raise ConfigError(told_of_constraint(constraint, str(error))) from None
    return sampling
