"""The content of a report's page: counts of the summary, figures of a pass over the output, the manager's records.

What is not known is said so, with the reason; nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import Markup

from millrace.model_manager.wire.errors import counted

from ...pages.facts import facts_of
from ...pages.found_prompts import Input, find_prompts, key_of
from ...pages.plots import bar_plot, line_plot
from ...pages.row_files import Row
from ...pages.shown_rows import ShownRow, shown_row
from ...pages.sketches import HistogramSketch, rates
from ...pages.table import Digest, Table
from ...pages.texts import Clipped, clipped, duration
from .recording import Recorder

_UNSEEN = "none whenever it was looked at, twice a second"
_CLASSES = 12
_EXAMPLES = 3
_LETTERS = 5
"""Dead letters among the sample's rows."""


class Plot(NamedTuple):
    """A plot and what stands under it."""

    svg: Markup
    caption: str


class Plots(NamedTuple):
    """Plots under one heading."""

    title: str
    plots: Sequence[Plot]
    unknown: str = ""
    """Why something is missing."""


class Example(NamedTuple):
    """A dead letter, in short."""

    id: Clipped
    why: Clipped


@dataclass
class FailureGroup:
    """Dead letters of a class."""

    error: str
    rows: int
    examples: list[Example] = field(default_factory=list)


class Chosen(NamedTuple):
    """What a page's filters are set to."""

    kind: str = ""
    failed: bool = False
    below: int | None = None
    """Per cent."""


NOTHING_CHOSEN = Chosen()


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that the template asks for."""

    title: str
    state: str
    """done, interrupted, failed, or that every row failed."""
    when: str
    notes: Sequence[str]
    figures: Sequence[tuple[str, str, str]]
    """Name, value, and what more there is to say."""
    plots: Sequence[Plots]
    ended: Sequence[tuple[str, int]]
    engine: Sequence[tuple[str, str]]
    engine_unknown: str
    failures: Sequence[FailureGroup]
    rows: Sequence[ShownRow]
    sample_title: str
    sample_note: str
    settings: Sequence[tuple[str, str]]
    chosen: Chosen = NOTHING_CHOSEN

    @property
    def kinds(self) -> list[str]:
        """The sample's finish reasons and classes of errors."""
        return sorted({row.facts.kind for row in self.rows})

    @property
    def with_confidence(self) -> bool:
        """Whether a row of the sample has one."""
        return any(row.facts.confidence is not None for row in self.rows)


# ── plots ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def over_time(recorder: Recorder | None, elsewhere: str) -> Plots:
    """Speeds over time. `elsewhere`: why nobody looked, if nobody did."""
    title = "Over time"
    if recorder is None:
        return Plots(title, [], f"not known here: {elsewhere}")
    found = rates(recorder.series.points())
    if len(found) < 2:
        return Plots(title, [], "the job was too short for a plot")
    long = duration(found[-1][0])
    plots = [Plot(line_plot("rows/s", [(at, rows) for at, rows, _ in found], long), "rows/s")]
    if any(tokens for _, _, tokens in found):
        plots.append(Plot(line_plot("tokens/s", [(at, tokens) for at, _, tokens in found], long), "generated tokens/s"))
    return Plots(title, plots)


def lengths(digest: Digest) -> Plots:
    """How long prompts and answers are."""
    counted = [("Prompts", digest.prompt_tokens), ("Answers", digest.generated_tokens)]
    plots = [_bars(name, numbers, "tokens") for name, numbers in counted if numbers.most]
    return Plots("Lengths", plots, "" if plots else _unsaid(digest, "say nothing of their tokens"))


def latencies(digest: Digest) -> Plots:
    """How long requests took."""
    numbered = [
        ("From a request's submission to its result", digest.latency),
        ("From a request's arrival to its first token", digest.first_token),
    ]
    plots = [_bars(name, numbers, "ms") for name, numbers in numbered if numbers.count]
    if not plots:
        return Plots("Latencies", plots, _unsaid(digest, "carry no times"))
    without = digest.rows - digest.latency.count
    why = f"{counted(without, 'row')} of {digest.rows:,} carry no times, as rows in OpenAI's form and failed ones do"
    return Plots("Latencies", plots, why if without else "")


def _unsaid(digest: Digest, what: str) -> str:
    return f"the rows that can be read {what}" if digest.rows else "no row was answered"


def _bars(name: str, numbers: HistogramSketch, unit: str) -> Plot:
    caption = (
        f"{name}: half at most about {numbers.quantile(0.5):,} {unit}, 95 % about {numbers.quantile(0.95):,}, "
        f"all {numbers.most:,}; {numbers.mean:,.1f} on average, of {counted(numbers.count, 'row')}"
    )
    return Plot(bar_plot(name, numbers, unit), caption)


# ── engine ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def engine_facts(recorder: Recorder) -> list[tuple[str, str]]:
    """What all engines of the job did, as their manager told."""
    engines = list(recorder.engines.values())
    counts = Counter[str]()
    for engine in engines:
        counts.update(engine.counts._asdict())
    if not counts["steps"] and not counts["prompt_tokens"]:
        return []
    read, cached = counts["prompt_tokens"], counts["cached_tokens"]
    drafted, right = counts["drafted_tokens"], counts["accepted_tokens"]
    blocks = max((engine.most_blocks for engine in engines), default=(0, 0))
    found = [
        ("prompt tokens from the prefix cache", _share(cached, read)),
        ("preemptions", f"{counts['preemptions']:,}"),
        ("restarts", f"{sum(engine.restarts for engine in engines):,}"),
        ("drafted tokens that were right", _share(right, drafted) if drafted else "none drafted"),
        ("steps", f"{counts['steps']:,}"),
    ]
    if blocks[1]:
        found.append(("most KV cache seen in use", _share(*blocks, unit=" blocks") if blocks[0] else _UNSEEN))
    if memory := max((engine.most_memory for engine in engines), default=0.0):
        found.append(("most memory of its processes", f"{memory:,.0f} MB"))
    return found


def _share(part: int, whole: int, unit: str = "") -> str:
    return f"{part:,} of {whole:,}{unit}" + (f" ({100 * part / whole:.0f} %)" if whole else "")


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def failures_of(letters: Table | None, counted: dict[str, int]) -> tuple[list[FailureGroup], list[Row]]:
    """Dead letters by class with examples, and a few whole ones. `counted`: the job's counters, which win."""
    found: dict[str, FailureGroup] = {}
    rows = Counter[str]()
    for row in letters.scan() if letters else ():
        error = facts_of(row).kind
        rows[error] += 1
        failure = found.setdefault(error, FailureGroup(error, 0)) if len(found) < _CLASSES else found.get(error)
        if failure is not None and len(failure.examples) < _EXAMPLES:
            said = row.get("error")
            why = said.get("message") if isinstance(said, dict) else row.get("reason")
            failure.examples.append(Example(clipped(row.get("id"), 200), clipped(why, 400)))
    for error, count in (counted or rows).items():
        found.setdefault(error, FailureGroup(error, 0)).rows = count
    ordered = sorted(found.values(), key=lambda each: (-each.rows, each.error))
    return ordered[: 2 * _CLASSES], letters.read(0, _LETTERS) if letters else []


def sample_of(rows: Sequence[Row], letters: Sequence[Row], source: Input | None) -> tuple[list[ShownRow], str]:
    """The rows with their prompts, and what to say of prompts that were not found."""
    prompts = find_prompts(source, map(key_of, rows)) if source else {}
    shown = [shown_row(row, prompts.get(key_of(row))) for row in rows]
    missing = sum(not row.prompt for row in shown)
    why = f"{missing:,} of these prompts were not found again in the input" if missing else ""
    return shown + [shown_row(row) for row in letters], why
