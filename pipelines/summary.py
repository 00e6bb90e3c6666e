"""What a job came to: where its output is, a few completions, counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
import pyarrow.parquet as pq
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics.metric import MetricsFilter

from model_manager.wire.shared_settings import UnmetSetting, sentence
from pipelines.progress import duration
from transforms.metrics import ACTIVE, NAMESPACE
from transforms.near_misses import NearMiss, counted_near_misses
from transforms.output_files import OutputFiles
from transforms.unmet_settings import counted_unmet

_EXAMPLES = 3
_WIDTH = 100


@dataclass(frozen=True)
class Outcome:
    """A finished job."""

    completions: int
    failed_requests: int
    unreadable_rows: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    seconds: float
    """From the first request to the end of the last."""
    startup: float = 0.0
    """Seconds before the first request; the model was loaded in them."""
    files: list[str] = field(default_factory=list)
    earlier_files: list[str] = field(default_factory=list)
    """Of the output that this job resumed."""
    dead_letter_files: list[str] = field(default_factory=list)
    near_misses: dict[NearMiss, int] = field(default_factory=dict)
    """Rows by what may be a misspelt parameter of theirs."""

    unmet_settings: list[UnmetSetting] = field(default_factory=list)
    """Of engine or manager: asked for, and not in force."""

    @property
    def dead_letters(self) -> int:
        """Rows without a completion."""
        return self.failed_requests + self.unreadable_rows

    @property
    def status(self) -> int:
        """1 where there were rows and the whole output, with what it had before, holds a completion of none."""
        return 1 if self.dead_letters and not self.completions and not self.earlier_files else 0


def outcome_of(result: Any, files: OutputFiles, kept: list[str]) -> Outcome:
    """From the result of a pipeline that ran here; `kept` are the files of earlier runs."""
    metrics = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))
    active = [each.committed for each in metrics["distributions"] if each.key.metric.name == ACTIVE]
    first = min((each.min for each in active), default=0)
    last = max((each.max for each in active), default=0)
    counts: dict[str, int] = {}
    for counter in metrics["counters"]:
        name = counter.key.metric.name
        counts[name] = counts.get(name, 0) + counter.committed
    return Outcome(
        completions=counts.get("requests", 0) - counts.get("failures", 0),
        failed_requests=counts.get("failures", 0),
        unreadable_rows=counts.get("unreadable_rows", 0),
        prompt_tokens=counts.get("prompt_tokens", 0),
        cached_tokens=counts.get("cached_tokens", 0),
        generated_tokens=counts.get("generated_tokens", 0),
        seconds=(last - first) / 1000,
        startup=first / 1000,
        files=[path for path in files.existing("completions") if path not in kept],
        earlier_files=kept,
        dead_letter_files=files.existing("dead_letters"),
        near_misses=counted_near_misses(counts),
        unmet_settings=counted_unmet(counts),
    )


def print_summary(outcome: Outcome) -> None:
    """On stdout."""
    for line in summary_lines(outcome):
        print(line)


def summary_lines(outcome: Outcome) -> list[str]:
    """Counts and speeds, places, a few completions."""
    if not outcome.completions and not outcome.dead_letters:
        return _nothing_done(outcome)
    if not outcome.completions:
        kept = " beside the earlier ones" if outcome.earlier_files else ""
        return [f"no completions{kept}: every row failed", *_output(outcome)]
    seconds = max(outcome.seconds, 1e-3)
    return [
        f"{outcome.completions:,} completions in {_span(seconds)}, first request to last result: "
        f"{outcome.completions / seconds:,.1f} prompts/s, {outcome.generated_tokens / seconds:,.0f} tokens/s",
        f"{outcome.prompt_tokens:,} prompt tokens ({outcome.cached_tokens:,} from the cache), "
        f"{outcome.generated_tokens:,} generated",
        *([f"before:       {_span(outcome.startup)} to start and to load the model"] if outcome.startup else []),
        *_output(outcome),
        *_examples(outcome.files),
    ]


def _output(outcome: Outcome) -> list[str]:
    return [
        f"completions:  {_places(outcome.files or outcome.earlier_files)}",
        f"dead letters: {_dead_letters(outcome)}",
        *([f"warning:      {sentence('the model', outcome.unmet_settings)}"] if outcome.unmet_settings else []),
        *(f"warning:      {found.sentence(rows)}" for found, rows in sorted(outcome.near_misses.items())),
    ]


def _span(seconds: float) -> str:
    return duration(seconds) if seconds >= 60 else f"{seconds:.1f} s"


def _nothing_done(outcome: Outcome) -> list[str]:
    if not outcome.earlier_files:
        return ["nothing to do: the input has no rows"]
    return [
        "nothing to do: the input has no row that is not completed already",
        f"completions:  {_places(outcome.earlier_files)}",
    ]


def _places(files: list[str]) -> str:
    if not files:
        return "none"
    return files[0] if len(files) == 1 else f"{files[0]} … {files[-1].rsplit('/', 1)[-1]} ({len(files)} files)"


def _dead_letters(outcome: Outcome) -> str:
    if not outcome.dead_letters:
        return "none"
    first = next(iter(_rows(outcome.dead_letter_files, 1)), {"error": "?", "reason": "?"})
    return (
        f"{outcome.dead_letters:,} rows in {_places(outcome.dead_letter_files)}, "
        f"the first: {first['error']}: {first['reason']}"
    )


def _examples(files: list[str]) -> list[str]:
    return [f"  {row['id']}: {_short(row['text'])}" for row in _rows(files, _EXAMPLES) if row.get("text") is not None]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def _rows(files: list[str], count: int) -> list[dict[str, Any]]:
    """The first rows of the first file."""
    if not files:
        return []
    with FileSystems.open(files[0], compression_type=CompressionTypes.UNCOMPRESSED) as stream:
        if files[0].endswith(".parquet"):
            file = pq.ParquetFile(stream)
            shown = [name for name in ("id", "text") if name in file.schema_arrow.names]
            batch = next(file.iter_batches(batch_size=count, columns=shown), None)
            return list(batch.to_pylist()) if batch is not None else []
        return [msgspec.json.decode(line) for line in islice(stream, count)]
