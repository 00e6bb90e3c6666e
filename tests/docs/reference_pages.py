"""The tables of docs/reference that are made from the code: flags, rows, metrics, errors, engines.

`python -m tests.docs.reference_pages` writes them into the pages, between `<!-- made: NAME -->` and `<!-- end -->`; a
test compares. The page of classes has a mark of its own: while `make docs` builds the site, mkdocstrings fills it in.
mkdocs.yml names this file as a hook.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import msgspec
import pyarrow as pa
from prometheus_client.metrics_core import Metric

import millrace
from millrace.model_manager.wire.backends import ALL_PARAMETERS, BACKENDS, COMMON_SETTINGS, Backend
from millrace.model_manager.wire.config import Quantization
from millrace.model_manager.wire.errors import ErrorInfo, MillraceError
from millrace.model_manager.wire.field_docs import field_docs
from millrace.model_manager.wire.job_progress import FailedRow, JobProgress, RowLife
from millrace.model_manager.wire.logprobs import TokenLogprob
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.request_counts import Histogram, RequestCounts
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.status import EndedModel, EngineStats, JobStatus, ModelInfo, ModelStatus, ProcessStatus
from millrace.model_manager.wire.timings import Timings
from millrace.pipelines.cli import COMMANDS, dispatch
from millrace.pipelines.flags.task_commands import TASKS
from millrace.serving.window.figures import Figures, ServerFigures
from millrace.transforms.elements.beam_metrics import METRICS
from millrace.transforms.elements.completions import Choice, Completion, DeadLetter, Usage
from millrace.transforms.elements.task_results import Classified, ContinuationScore, Embedded, Extracted, Scored
from millrace.transforms.writing.output_rows import (
    CLASSIFIED_SCHEMA,
    COMMON_FIELDS,
    EMBEDDED_SCHEMA,
    PARQUET_SCHEMA,
    SCORED_SCHEMA,
)
from tests.serving.metrics.scrapes import answered_families, machine_families, server_families

PAGES = sorted((Path(__file__).parents[2] / "docs/reference").glob("*.md"))
_PART = re.compile(r"(?<=<!-- made: )(\w+) -->\n(?:(?!<!-- made: ).)*?<!-- end -->", re.DOTALL)
_CLASSES = "<!-- classes -->"
_JOBS = tuple(task.command for task in TASKS.values())


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this with each page's source."""
    return markdown.replace(_CLASSES, "\n".join(classes()))


def made(page: str) -> str:
    """The page with its tables as the code has them now."""
    return _PART.sub(lambda found: _marked(found[1]), page)


def _marked(part: str) -> str:
    table = "\n".join(PARTS[part]()).strip()
    return f"{part} -->\n\n{table}\n\n<!-- end -->"


def write() -> None:
    """Write the tables into the pages."""
    for page in PAGES:
        page.write_text(made(page.read_text(encoding="utf-8")), encoding="utf-8")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |"
    yield ""


def flags() -> Iterator[str]:
    """Every flag of every command; the commands that run jobs have theirs together."""
    yield f"## {', '.join(_JOBS)}\n"
    yield "These commands run a job. The last column names the commands that take a flag, if not all do.\n"
    for title, rows in job_flags().items():
        yield f"### {title[0].upper()}{title[1:]}\n"
        shown = ((*row, "" if set(commands) == set(_JOBS) else ", ".join(commands)) for row, commands in rows.items())
        yield from _table(("flag", "value", "meaning", "commands"), shown)
    for command in COMMANDS:
        if command not in _JOBS:
            parser = parser_of(command)
            yield f"## {command}\n"
            yield from _filled(parser.description or "")
            named = (row for group in parser._action_groups for row in _flag_rows(group))
            yield from _table(("flag", "value", "meaning"), named)


def job_flags() -> dict[str, dict[tuple[str, ...], list[str]]]:
    """Groups of flags, each flag with the commands that take it in the same way."""
    groups: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for command in _JOBS:
        for group in parser_of(command)._action_groups:
            for row in _flag_rows(group):
                groups.setdefault(group.title or "", {}).setdefault(row, []).append(command)
    return groups


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser that answers `millrace COMMAND --help`."""
    seen: list[argparse.ArgumentParser] = []

    def keep(parser: argparse.ArgumentParser) -> None:
        seen.append(parser)

    with patch.object(argparse.ArgumentParser, "print_help", keep), suppress(SystemExit):
        dispatch([command, "--help"])
    return seen[0]


def _flag_rows(group: Any) -> Iterator[tuple[str, str, str]]:
    for action in group._group_actions:
        if action.help is not argparse.SUPPRESS and "--help" not in action.option_strings:
            names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar}`"
            yield names, _value(action), (action.help or "").replace("%%", "%")


def _value(action: argparse.Action) -> str:
    if action.choices:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    if action.nargs == 0 or not action.option_strings:
        return ""
    return f"`{action.metavar or action.dest.upper()}{' …' * (action.nargs == '+')}`"


_STRUCTS: dict[str, type[msgspec.Struct]] = {
    "usage": Usage,
    "timings": Timings,
    "choices": Choice,
    "error": ErrorInfo,
    "scores": ContinuationScore,
    "logprobs": TokenLogprob,
    "prompt_logprobs": TokenLogprob,
}
"""What the nested fields of a row are made of."""


def _docs(struct: type) -> dict[str, str]:
    """The docstrings of a struct's fields, the inherited ones too."""
    docs: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__module__.startswith("millrace."):
            docs |= {name: doc for name, doc in field_docs(base).items() if doc}
    return docs


def _field_rows(struct: type[msgspec.Struct], under: str = "") -> Iterator[tuple[str, str]]:
    docs = _docs(struct)
    return ((f"`{under}{name}`", docs.get(name, "")) for name in struct.__struct_fields__)


def _schema_rows(fields: Iterable[pa.Field], struct: type, under: str = "") -> Iterator[tuple[str, str, str]]:
    docs = _docs(struct)
    for field in fields:
        doc = docs.get(field.name) or _OTHER_DOCS.get(field.name, "")
        yield f"`{under}{field.name}`", _type(field.type), doc
        kind = field.type.value_type if pa.types.is_list(field.type) else field.type
        if pa.types.is_struct(kind):
            path = f"{under}{field.name}{'[]' * pa.types.is_list(field.type)}."
            yield from _schema_rows(kind, _STRUCTS.get(field.name, TokenLogprob), path)


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_type(kind.value_type)}"
    if pa.types.is_map(kind):
        return f"map of {_type(kind.key_type)} to {_type(kind.item_type)}"
    return "struct" if pa.types.is_struct(kind) else str(kind)


_OTHER_DOCS = {
    "latency": "Seconds from submission to result, as the worker saw them.",
    "label": "The likeliest of the labels that hold; null where none does.",
}
"""Fields of rows that no struct has under that name."""


def rows() -> Iterator[str]:
    """Every field of an output row, a table a task."""
    kinds: list[tuple[str, Iterable[pa.Field], type]] = [
        ("run", PARQUET_SCHEMA, Completion),
        ("score", SCORED_SCHEMA, Scored),
        ("embed", EMBEDDED_SCHEMA, Embedded),
        ("classify", CLASSIFIED_SCHEMA, Classified),
        ("extract: beside the fields of your type", _extracted(), Extracted),
    ]
    for title, fields, struct in kinds:
        yield f"### {title}\n"
        yield from _table(("field", "type in Parquet", "meaning"), _schema_rows(fields, struct))
    yield "### Dead letters\n"
    docs = _docs(DeadLetter)
    yield from _table(
        ("field", "meaning"), ((f"`{name}`", docs.get(name, "")) for name in DeadLetter.__struct_fields__)
    )


def _extracted() -> list[pa.Field]:
    found = [pa.field("confidence", pa.float64()), pa.field("confidences", pa.map_(pa.string(), pa.float64()))]
    span = pa.struct([("start", pa.int64()), ("end", pa.int64())])
    return [PARQUET_SCHEMA.field("id"), *found, pa.field("spans", pa.map_(pa.string(), span)), *COMMON_FIELDS]


def parameters() -> Iterator[str]:
    """Every sampling parameter, as a column of a row."""
    yield from _table(("column", "meaning"), _field_rows(SamplingParams))


def metrics() -> Iterator[str]:
    """Every Beam metric of a job."""
    kinds = ("distribution" if name.endswith("_ms") else "counter" for name in METRICS)
    yield from _table(
        ("metric", "kind", "meaning"),
        ((f"`{name}`", kind, text) for (name, text), kind in zip(METRICS.items(), kinds, strict=True)),
    )


def status() -> Iterator[str]:
    """Every field of `millrace ps --json`."""
    places: dict[str, type[msgspec.Struct]] = {
        "": Status,
        "models[].": ModelStatus,
        "models[].stats.": EngineStats,
        "models[].requests.SOURCE.": RequestCounts,
        "models[].requests.SOURCE.histograms.NAME.": Histogram,
        "models[].info.": ModelInfo,
        "ended[].": EndedModel,
        "jobs[].": JobStatus,
        "processes[].": ProcessStatus,
    }
    yield from _fields_at(places)


def _fields_at(places: Mapping[str, type[msgspec.Struct]]) -> Iterator[str]:
    fields = (row for place, struct in places.items() for row in _field_rows(struct, place))
    yield from _table(("field", "meaning"), fields)


def figures() -> Iterator[str]:
    """Every field of `millrace top --json`."""
    places: dict[str, type[msgspec.Struct]] = {
        "": Figures,
        "jobs[].": JobProgress,
        "rows[].": RowLife,
        "dead_letters[].": FailedRow,
        "server.": ServerFigures,
    }
    yield from _fields_at(places)


def machine_metrics() -> Iterator[str]:
    """Every metric for Prometheus of a machine."""
    yield from _metric_rows(machine_families())


def request_metrics() -> Iterator[str]:
    """Every metric for Prometheus of answered requests."""
    yield from _metric_rows(answered_families())


def server_metrics() -> Iterator[str]:
    """Every metric for Prometheus that a server alone has."""
    yield from _metric_rows(server_families())


def _metric_rows(families: Iterable[Metric]) -> Iterator[str]:
    rows = []
    for family in families:
        name = f"{family.name}{'_total' * (family.type == 'counter')}"
        labels = [label for label in family.samples[0].labels if label != "le"]
        rows.append((f"`{name}`", family.type, _names(tuple(labels)), family.documentation))
    yield from _table(("metric", "kind", "labels", "meaning"), rows)


def classes() -> Iterator[str]:
    """Every name that `import millrace` gives."""
    for name in millrace.__all__:
        yield f"::: millrace.{millrace._MODULE_OF[name]}.{name}"  # unimported: torch comes with one
        yield f"    options: {{heading: millrace.{name}, toc_label: {name}}}\n"


def error_classes() -> Iterator[str]:
    """Every class of error, and what it means."""
    found = [MillraceError]
    for each in found:
        found += [kind for kind in each.__subclasses__() if kind.__module__ == MillraceError.__module__]
    rows = ((f"`{each.__name__}`", " ".join((each.__doc__ or "").split())) for each in found)
    yield from _table(("class", "when"), rows)


def engines() -> Iterator[str]:
    """Every back end: what it runs and what it can do."""
    others = _names(backend.name for backend in BACKENDS.values() if not backend.fetches_files)
    yield from _filled(
        f"Every engine takes these settings of `ModelConfig`: {_names(COMMON_SETTINGS)}; all but {others} take"
        " `revision` too."
    )
    for backend in sorted(BACKENDS.values(), key=lambda backend: backend.name == "fake"):
        yield f"### {backend.name}{' (for tests)' * (backend.name == 'fake')}\n"
        yield from _table(("", ""), _facts(backend).items())


def capabilities() -> Iterator[str]:
    """One table: what each back end can do."""
    shown = [backend for backend in BACKENDS.values() if backend.name != "fake"]
    told = [_abilities(backend) for backend in shown]
    rows = [(name, *(each[name] for each in told)) for name in told[0]]
    yield from _table(("", *(f"`{backend.name}`" for backend in shown)), rows)


def _abilities(backend: Backend) -> dict[str, str]:
    def yes(holds: bool) -> str:
        return "yes" if holds else "–"

    parameters, settings = backend.parameters, backend.settings
    by_dialect = "" if backend.fetches_files else ", by dialect"
    return {
        **{task: yes(backend.can(task)) for task in TASKS},
        "constraints": (", ".join(sorted(backend.constraints)) or "–") + by_dialect * bool(backend.constraints),
        "seeds": yes("seed" in parameters) + by_dialect,
        "log-probabilities": yes("logprobs" in parameters) + by_dialect * ("logprobs" in parameters),
        "stop strings": yes("stop" in parameters) + by_dialect,
        "priorities": yes("priority" in parameters),
        "LoRA": yes("max_loras" in settings),
        "goes on from tokens after its death": _GO_ON[backend.continues] + by_dialect,
        "takes": backend.takes,
        "weights": backend.files if backend.fetches_files else "the server's",
        "`quantization`": ", ".join(_quantizations(backend)) or "–",
        "tensor parallelism": yes("tensor_parallel" in settings),
        "NVIDIA GPUs": "its servers'" if not backend.fetches_files else yes(backend.uses_gpus),
        "package": _names(backend.packages[:1]) or "millrace's",
        "package for GPUs": _names(backend.cuda_packages[:1]) or "–",
    }


def _quantizations(backend: Backend) -> tuple[str, ...]:
    if "quantization" not in backend.settings:
        return ("the file's",) if backend.files == "gguf" else ()
    taken = backend.values.get("quantization", get_args(Quantization))
    return tuple(each for each in taken if each != "none")


def _facts(backend: Backend) -> dict[str, str]:
    lacks = _names(ALL_PARAMETERS - backend.parameters - {"constraint"}) or "none"
    constraints = _names(backend.constraints) or "none"
    if not backend.fetches_files:
        lacks += f"; further ones by the [dialect]({_DIALECTS})"
        constraints = f"by the [dialect]({_DIALECTS}): {constraints}, or fewer"
    return {
        "what it is": backend.summary,
        "tasks": _names(tuple(task for task in TASKS if backend.can(task))),
        "packages": _names(backend.packages) or "millrace's",
        "packages for NVIDIA GPUs": _names(backend.cuda_packages) or ("none" if backend.packages else "millrace's"),
        "weights": backend.files if backend.fetches_files else "the server's",
        "files of its own format, loaded as they are": _names(backend.own_files[:2]) or "none",
        "takes prompts as": {"tokens": "token ids, made with the model's tokenizer", "text": "text"}[backend.takes],
        "a request after the engine's death": _after_death(backend),
        "constraints": constraints,
        "sampling parameters that it lacks": lacks,
        "further settings of `ModelConfig`": _names(backend.settings) or "none",
        "`backend_options`": "the engine's own" if backend.options is None else _names(backend.options) or "none",
    }


def _after_death(backend: Backend) -> str:
    where = "" if backend.fetches_files else f"[where the server gives tokens]({_GIVE_TOKENS}) "
    if not backend.penalties_of_output:
        return _AFTER_DEATH[backend.continues]
    penalties = " or ".join(f"`{name}`" for name in backend.penalties_of_output)
    return f"{where}{_AFTER_DEATH[backend.continues]}; starts again with {penalties}"


def _filled(text: str) -> Iterator[str]:
    yield f"{textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)}\n"


_DIALECTS = "../how-to/servers.md#dialects"
_GIVE_TOKENS = "../how-to/servers.md#answers-that-go-on-from-their-tokens"
_GO_ON = {"all": "all rows", "unseeded": "all but seeded samples", "greedy": "greedy rows", "none": "–"}
_AFTER_DEATH = {
    "all": "continues from its tokens",
    "unseeded": "continues from its tokens; starts again with a constraint, or with a seed and a temperature",
    "greedy": "continues from its tokens; starts again with a constraint or a temperature",
    "none": "starts again",
}


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in (names if isinstance(names, tuple) else sorted(names)))


_ALL = (
    *(flags, rows, parameters, metrics, status, figures, machine_metrics, request_metrics, server_metrics),
    *(error_classes, engines, capabilities),
)
PARTS = {each.__name__: each for each in _ALL}
"""The tables, by the names of their marks."""

if __name__ == "__main__":
    write()
