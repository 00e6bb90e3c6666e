"""The flags of `millrace plan`. A flag that `millrace run` has too means the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.files.formats import NamedFormat

from ..flags.backend import add_backend
from ..flags.dataflow import add_gpu
from ..flags.parser import FlagParser

CHAT = {"auto": None, "always": True, "never": False}


def plan_parser() -> FlagParser:
    """Raises ConfigError for anything wrong."""
    parser = FlagParser(
        prog="millrace plan",
        usage="%(prog)s --input GLOB … --tokens_per_second N [--model MODEL] [--prices FILE] [flags]",
        description="Workers, hours and money of a job: from its tokens, the speed of one worker, and prices.",
        allow_abbrev=False,
    )
    _add_input(parser.add_argument_group("input, as for millrace run"))
    _add_output(parser.add_argument_group("what is generated"))
    _add_speed(parser.add_argument_group("one worker's speed"))
    add_backend(parser.add_argument_group("engine, as for millrace run"))
    _add_machine(parser.add_argument_group("machine and prices"))
    _add_question(parser.add_argument_group("question"))
    return parser


def _add_input(group: Any) -> None:
    group.add_argument("--input", nargs="+", action="append", metavar="GLOB", help="Files of prompts.")
    group.add_argument(
        "--input_format", choices=list(get_args(NamedFormat)), help="Format of the files. Default: by the extension."
    )
    group.add_argument(
        "--prompt_column", metavar="NAME", help="Column that holds the prompt. Default: prompt, else messages."
    )
    group.add_argument("--template", help="Make each prompt from the row's columns, as for millrace run.")
    group.add_argument("--system", help="System message of each chat, as for millrace run.")
    group.add_argument(
        "--id_column", metavar="NAME", help="Column that holds the row's id. Default: id, else custom_id."
    )
    group.add_argument(
        "--no-row_params", dest="row_params", action="store_false", help="Read no sampling parameters from columns."
    )
    group.add_argument(
        "--model", default=EMBEDDED_MODEL, help="Model whose tokenizer counts tokens; no weights are fetched."
    )
    group.add_argument("--revision", help="Branch, tag or commit of --model, a hub name.")
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="Model whose tokenizer counts tokens, if --model is a GGUF file or a server's: these give no tokenizer.",
    )
    group.add_argument(
        "--chat", choices=list(CHAT), default="auto", help="Put text through the chat template. Default: auto."
    )
    group.add_argument(
        "--sample",
        type=int,
        default=2000,
        metavar="N",
        help="Rows to sample when the input has more; their tokens are counted. 0 counts all rows. Default: 2000.",
    )


def _add_output(group: Any) -> None:
    group.add_argument(
        "--max_tokens",
        type=int,
        default=SamplingParams().max_tokens,
        metavar="N",
        help="Most tokens to generate per completion. Default: 128.",
    )
    group.add_argument("--n", type=int, default=1, metavar="N", help="Completions per prompt. Default: 1.")
    group.add_argument(
        "--output_tokens",
        type=float,
        metavar="MEAN",
        help="Mean generated tokens per row. Default: the row's max_tokens, times n.",
    )
    group.add_argument(
        "--trial",
        nargs="+",
        metavar="GLOB",
        help="Completions (JSONL) of a trial run, whose mean number of tokens is taken. Not with --output_tokens.",
    )


def _add_speed(group: Any) -> None:
    group.add_argument(
        "--tokens_per_second",
        type=float,
        metavar="N",
        help="Tokens one worker generates per second, reading prompts meanwhile: the speed that `millrace run` prints.",
    )
    group.add_argument(
        "--prompt_tokens_per_second",
        type=float,
        metavar="N",
        help="Prompt tokens one worker reads per second. Needed if nothing is generated, or if --tokens_per_second "
        "does not include reading prompts as long as these.",
    )
    group.add_argument(
        "--results", type=Path, metavar="FILE", help="Read the speed from a file of millrace's benchmarks."
    )
    group.add_argument(
        "--where",
        default="",
        metavar="K=V,…",
        help="Figure of --results to use, by its shape, workload, dtype and engine: dtype=int8,shape=…",
    )


def _add_machine(group: Any) -> None:
    add_gpu(group)
    group.add_argument(
        "--machine_type",
        metavar="NAME",
        help="Machine type of a worker. Default: as for a job with this model and GPU.",
    )
    group.add_argument(
        "--disk_size_gb", type=int, metavar="N", help="Disk of a worker, in GB. Default: as for such a job."
    )
    group.add_argument("--prices", type=Path, metavar="FILE", help="File of prices in TOML (docs: Dataflow).")


def _add_question(group: Any) -> None:
    group.add_argument("--workers", type=int, metavar="N", help="Show how long this number of workers takes.")
    group.add_argument(
        "--deadline", metavar="TIME", help="Show how many workers finish in this time, such as 90m, 6h or 2d."
    )
    group.add_argument(
        "--startup_minutes",
        type=float,
        default=10.0,
        metavar="N",
        help="Minutes a worker takes to start; you pay for them. Default: 10.",
    )
    group.add_argument(
        "--margin",
        type=float,
        default=0.1,
        metavar="PART",
        help="Share of the work to add for stragglers. Default: 0.1.",
    )
    group.add_argument(
        "--preemptions_per_hour",
        type=float,
        default=0.0,
        metavar="N",
        help="Preemptions of each worker per hour, as of Spot VMs. The start of each replacement is added to the work. "
        "Takes 0 to 60. Default: 0.",
    )
    group.add_argument("--json", action="store_true", help="Print JSON, with everything that was assumed.")
    group.add_argument("--verbose", action="store_true", help="Show full stack traces.")
