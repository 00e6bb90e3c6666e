"""All flags of a command that runs a job, in the groups of its `--help`. `job_options` reads what they mean."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.files.formats import NamedFormat, OutputFormat
from millrace.transforms.models.updates import WatchedFile

from .dataflow import add_dataflow
from .file_flags import CONSTRAINT_HELP, CONSTRAINT_METAVAR
from .from_settings import add_settings
from .parser import FlagParser, positive_seconds, seconds
from .shared_flags import add_engine, add_logging, add_manager, add_model
from .task_commands import TaskCommand
from .trace_flags import add_traces

CHAT = {"auto": None, "always": True, "never": False}
"""What the values of `--chat` mean."""


def make_parser(task: TaskCommand) -> FlagParser:
    """A parser of all our flags that a command takes."""
    return job_parser(task)[0]


def job_parser(task: TaskCommand) -> tuple[FlagParser, dict[str, list[str]]]:
    """The parser, and the names of the settings that it reads for the task, the model, sampling and the manager."""
    parser = FlagParser(
        prog=f"millrace {task.command}",
        usage="%(prog)s --input PLACE … [--output PLACE] [--model MODEL] [flags]",
        description=task.does,
        epilog="All other flags are Beam's, for example --runner, --direct_num_workers, --project, --temp_location.",
        allow_abbrev=False,
    )
    _add_input(parser.add_argument_group("input"), documents=task.documents)
    names = {"task": task.add_flags(parser.add_argument_group("task"))}
    _add_output(parser.add_argument_group("output"), task.output)
    names["model"] = _add_models(parser.add_argument_group("model"), task)
    own = "with --row_params rows" if task.documents else "rows"
    sampling = parser.add_argument_group(f"sampling ({own} may carry their own under the same names)")
    names["sampling"] = _add_sampling(sampling, task)
    names["model"] += add_engine(parser.add_argument_group("engine"))
    names["manager"] = add_manager(parser.add_argument_group)
    _add_run(parser.add_argument_group("run"))
    add_traces(parser.add_argument_group("traces"))
    add_dataflow(parser.add_argument_group("Dataflow (with --runner DataflowRunner; docs: Dataflow)"))
    return parser, names


def _add_models(group: Any, task: TaskCommand) -> list[str]:
    names = add_model(group)
    group.add_argument(
        "--chat",
        choices=list(CHAT),
        default=task.chat,
        help="Put text through the model's chat template, as a user's turn. auto: if the model has a template. "
        "Default: auto, with embed never.",
    )
    group.add_argument(
        "--models",
        metavar="A,B,C",
        help="Models that rows may name in their column `model`. Rows that name none go to --model, by default to the "
        "first of these; a row that names another is a dead letter (docs: Many models).",
    )
    _add_updates(group)
    return names


def _add_sampling(group: Any, task: TaskCommand) -> list[str]:
    left_out = set(SamplingParams.__struct_fields__) - set(task.parameters)
    names = add_settings(group, SamplingParams, leave_out=left_out | {"constraint"}, defaults=task.defaults)
    if "constraint" in left_out:
        return names
    group.add_argument("--constraint", metavar=CONSTRAINT_METAVAR, help=CONSTRAINT_HELP)
    return [*names, "constraint"]


def _add_updates(group: Any) -> None:
    group.add_argument(
        "--model_updates",
        metavar="watch:FILE",
        help="File, local, gs:// or s3://, that names the model to use while the job runs: its name, or a JSON "
        "object of settings.",
    )
    group.add_argument(
        "--model_updates_every",
        type=positive_seconds,
        default=WatchedFile.every,
        metavar="SECONDS",
        help=f"How often each worker process looks at that file. Default: {WatchedFile.every:g}.",
    )


def _add_input(group: Any, *, documents: bool) -> None:
    what = "documents, text files read whole" if documents else "prompts"
    group.add_argument(
        "--input",
        nargs="+",
        action="append",
        metavar="PLACE",
        help=f"Files of {what}: paths or globs, local, gs:// or s3:// (or another file system of Beam's), compressed "
        "or not. Or a stream: pubsub:projects/P/subscriptions/S (or topics/T), kafka:HOST:PORT/TOPIC, watch:GLOB.",
    )
    group.add_argument(
        "--input_format",
        choices=list(get_args(NamedFormat)),
        help="text: each line is a row; file: each file is a row; documents: JSONL, CSV and Parquet by their "
        "extensions, every other file is a row. "
        f"Default: {'documents' if documents else 'by the extension'}; for messages of a stream, jsonl.",
    )
    _add_columns(group, documents=documents)
    group.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="Read only the first N rows. Files are read in the order of their names.",
    )


def _add_columns(group: Any, *, documents: bool) -> None:
    if documents:
        group.add_argument(
            "--text_column", metavar="NAME", help="Column that holds the document. Default: text, document or prompt."
        )
    else:
        group.add_argument(
            "--prompt_column", metavar="NAME", help="Column that holds the prompt. Default: prompt, else messages."
        )
    group.add_argument(
        "--id_column",
        metavar="NAME",
        help="Column that holds the row's id. Default: id, else custom_id, else the row's position.",
    )
    group.add_argument(
        "--row_params",
        action=argparse.BooleanOptionalAction,
        default=not documents,
        help=f"Read sampling parameters from columns with their names. Default: {not documents}.",
    )


def _add_output(group: Any, default: str) -> None:
    group.add_argument(
        "--output",
        default=default,
        metavar="PLACE",
        help="Prefix of the files' paths; its ending .jsonl, .parquet or .csv names the format. Or a topic: "
        "pubsub:projects/P/topics/T, kafka:HOST:PORT/TOPIC. "
        f"Default: {default}.",
    )
    group.add_argument(
        "--dead_letters",
        metavar="PLACE",
        help="Prefix or topic for the rows that failed, as for --output. Default: beside the results.",
    )
    group.add_argument(
        "--output_format",
        choices=list(get_args(OutputFormat)),
        help="Format of the results' files. Default: by the ending of --output, else jsonl.",
    )
    group.add_argument(
        "--num_shards",
        type=int,
        metavar="N",
        help="Most files to write; for a stream, per window. Default: one per 256 MiB; for a stream, 1.",
    )
    _add_windows(group)
    _add_report(group)
    group.add_argument("--overwrite", action="store_true", help="Replace existing output.")
    group.add_argument(
        "--resume",
        action="store_true",
        help="Keep existing output, and complete only the prompts it lacks; for a stream, add to it.",
    )


def _add_report(group: Any) -> None:
    group.add_argument(
        "--report",
        nargs="?",
        const=True,
        metavar="PATH",
        help="Write an HTML report to this file, local, gs:// or s3://. Default: <output>.report.html, unless the job "
        "is a stream or on Dataflow, or writes to a topic.",
    )
    group.add_argument("--no-report", dest="report", action="store_false", default=None, help="Write no report.")
    group.add_argument(
        "--prices",
        metavar="FILE",
        help="File of prices, as for millrace plan. With --machine_type the report tells what the job's time costs.",
    )


def _add_windows(group: Any) -> None:
    group.add_argument(
        "--window",
        type=positive_seconds,
        metavar="SECONDS",
        help="Time that one set of a stream's files covers. Default: 60. On Prism a killed or failed job loses up to "
        "one window of a broker's messages (docs: Streams).",
    )
    group.add_argument(
        "--lateness",
        type=seconds,
        metavar="SECONDS",
        help="Time after the end of a stream's window in which late rows are still written, to further files. Rows "
        "later than that are dropped. Default: 86400 (one day).",
    )


def _add_run(group: Any) -> None:
    group.add_argument("--fail_fast", action="store_true", help="End the job at the first bad row or failed request.")
    group.add_argument("--quiet", action="store_true", help="Print nothing but errors.")
    add_logging(group)
