"""The flags of `millrace run`, `score` and `embed`, parsed once into frozen settings; what is not ours is Beam's."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from apache_beam.options.pipeline_options import PipelineOptions

from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.errors import ConfigError, InvalidRequest
from model_manager.wire.messages import Pooling, Task
from model_manager.wire.sampling import SamplingParams
from pipelines.beam_flags import beam_options
from pipelines.flag_parser import FlagParser
from pipelines.settings_flags import add_settings, given
from transforms.formats import InputFormat, OutputFormat
from transforms.output_files import IfExists

_MODEL = ("model", "revision", "dtype", "quantization", "kv_cache_dtype", "device", "max_model_len")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_COMMANDS: dict[Task, tuple[str, str]] = {
    "generate": ("run", "Complete every prompt of the input files, and write the completions."),
    "score": ("score", "Give the log-probabilities of every prompt's continuations."),
    "embed": ("embed", "Give every prompt as a vector."),
}
_OUTPUTS: dict[Task, str] = {"generate": "out/completions", "score": "out/scores", "embed": "out/embeddings"}
"""Where each task writes by default; apart, since --resume tells by ids alone what is done."""
_OWN_FLAGS: dict[Task, tuple[str, ...]] = {
    "generate": (),
    "score": ("continuations_column",),
    "embed": ("pooling", "normalize"),
}
_OF_EVERY_TASK = ("priority", "deadline", "cache_salt", "adapter")
"""Parameters that are not of sampling."""
_CHAT = {"auto": None, "always": True, "never": False}


@dataclass(frozen=True)
class JobOptions:
    """Everything that a job is told."""

    input: list[str]
    input_format: str | None
    prompt_column: str | None
    id_column: str | None
    row_params: bool
    output: str
    output_format: str | None
    num_shards: int | None
    if_exists: IfExists
    model: ModelConfig
    chat: bool | None
    sampling: SamplingParams
    manager: ManagerConfig
    fail_fast: bool
    quiet: bool
    verbose: bool
    log_level: str
    beam: PipelineOptions
    continuations_column: str = "continuations"
    """Of scores."""
    pooling: Pooling = "last"
    """Of embeddings."""
    normalize: bool = True
    """Of embeddings."""
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names the job's requests in the manager."""


def parse(arguments: Sequence[str], task: Task = "generate") -> JobOptions:
    """Raises ConfigError, one sentence, for anything wrong; `--help` prints and exits 0."""
    parser, names = _parser(task)
    known, rest = parser.parse_known_args(list(arguments))
    own_flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    beam = beam_options(rest, own_flags)
    if not known.input:
        raise ConfigError("--input is missing: takes one or more files or globs")
    if known.overwrite and known.resume:
        raise ConfigError("--overwrite and --resume exclude each other")
    return JobOptions(
        input=[pattern for patterns in known.input for pattern in patterns],
        input_format=known.input_format,
        prompt_column=known.prompt_column,
        id_column=known.id_column,
        row_params=known.row_params,
        output=known.output,
        output_format=known.output_format,
        num_shards=known.num_shards,
        if_exists="overwrite" if known.overwrite else "resume" if known.resume else "refuse",
        model=ModelConfig.parse(given(known, names["model"])),
        chat=_CHAT[known.chat],
        sampling=_sampling(given(known, names["sampling"])),
        manager=ManagerConfig.parse(given(known, names["manager"])),
        fail_fast=known.fail_fast,
        quiet=known.quiet,
        verbose=known.verbose,
        log_level="info" if known.verbose and known.log_level == "warning" else known.log_level,
        beam=beam,
        **{name: getattr(known, name) for name in _OWN_FLAGS[task]},
    )


def _sampling(fields: dict[str, Any]) -> SamplingParams:
    try:
        return SamplingParams.parse(fields)
    except InvalidRequest as error:
        raise ConfigError(str(error)) from None


def _parser(task: Task) -> tuple[FlagParser, dict[str, list[str]]]:
    command, description = _COMMANDS[task]
    parser = FlagParser(
        prog=f"millrace {command}",
        usage="%(prog)s --input GLOB … [--output PREFIX] [--model MODEL] [flags]",
        description=description,
        epilog="All other flags are Beam's, for example --runner, --direct_num_workers, --project, --temp_location.",
        allow_abbrev=False,
    )
    _add_input(parser.add_argument_group("input"))
    _add_task(parser.add_argument_group("task"), task)
    _add_output(parser.add_argument_group("output"), _OUTPUTS[task])
    model = parser.add_argument_group("model")
    names = {"model": add_settings(model, ModelConfig, leave_out=set(ModelConfig.__struct_fields__) - set(_MODEL))}
    model.add_argument(
        "--chat",
        choices=list(_CHAT),
        default="never" if task == "embed" else "auto",
        help="Whether text goes through the model's chat template, as a user's turn; auto: if it has one.",
    )
    sampling = parser.add_argument_group("sampling (rows may carry their own under the same names)")
    left_out = set() if task == "generate" else set(SamplingParams.__struct_fields__) - set(_OF_EVERY_TASK)
    names["sampling"] = add_settings(sampling, SamplingParams, leave_out=left_out)
    engine = parser.add_argument_group("engine")
    names["model"] += add_settings(engine, ModelConfig, leave_out={*_MODEL, "backend"})
    engine.add_argument("--backend", default=None, help=argparse.SUPPRESS)
    names["model"].append("backend")
    names["manager"] = add_settings(parser.add_argument_group("manager (times in seconds)"), ManagerConfig)
    _add_run(parser.add_argument_group("run"))
    return parser, names


def _add_task(group: Any, task: Task) -> None:
    if task == "score":
        group.add_argument(
            "--continuations_column",
            default=JobOptions.continuations_column,
            metavar="NAME",
            help="A string, or a list of strings or of lists of token ids. Default: continuations.",
        )
    if task == "embed":
        poolings = list(get_args(Pooling))
        group.add_argument(
            "--pooling", choices=poolings, default="last", help="The last token's state, or the mean. Default: last."
        )
        group.add_argument(
            "--normalize", action=argparse.BooleanOptionalAction, default=True, help="To length 1. Default: True."
        )


def _add_input(group: Any) -> None:
    group.add_argument(
        "--input",
        nargs="+",
        action="append",
        metavar="GLOB",
        help="Files of prompts: paths or globs, local or gs:// (or another file system of Beam's), compressed or not.",
    )
    formats = list(get_args(InputFormat))
    group.add_argument("--input_format", choices=formats, help="Default: by the files' extension.")
    group.add_argument("--prompt_column", metavar="NAME", help="Default: prompt, else messages.")
    group.add_argument("--id_column", metavar="NAME", help="Default: id, else custom_id, else the row's position.")
    group.add_argument(
        "--row_params",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Take sampling parameters from columns of their names. Default: True.",
    )


def _add_output(group: Any, default: str) -> None:
    group.add_argument(
        "--output", default=default, metavar="PREFIX", help=f"The beginning of the files' paths. Default: {default}."
    )
    group.add_argument("--output_format", choices=list(get_args(OutputFormat)), help="Default: jsonl.")
    group.add_argument(
        "--num_shards", type=int, metavar="N", help="Most files to write. Default: as many as 256 MiB each need."
    )
    group.add_argument("--overwrite", action="store_true", help="Replace output that is there.")
    group.add_argument(
        "--resume", action="store_true", help="Keep output that is there, and complete only the prompts it lacks."
    )


def _add_run(group: Any) -> None:
    group.add_argument("--fail_fast", action="store_true", help="End the job at the first bad row or failed request.")
    group.add_argument("--quiet", action="store_true", help="Print nothing but errors.")
    group.add_argument("--verbose", action="store_true", help="Log what happens, and show whole stack traces.")
    group.add_argument("--log_level", choices=_LOG_LEVELS, default="warning", help="Default: warning.")
