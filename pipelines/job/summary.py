"""The summary of a job: where its output is, a few completions, counts."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

from apache_beam.metrics.metric import MetricsFilter

from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.errors import counted
from millrace.model_manager.wire.shared_settings import UnmetSetting, sentence
from millrace.transforms.addresses import Address, Files
from millrace.transforms.elements.beam_metrics import ACTIVE, NAMESPACE, failures_in
from millrace.transforms.elements.near_misses import NearMiss, counted_near_misses
from millrace.transforms.elements.repeated_ids import RepeatedIds, answered_ids, repeated_ids
from millrace.transforms.models.summary_counters import counted_unmet, failed_changes
from millrace.transforms.writing.typed_rows import typed_fields

from ..edge import plain, print_at_the_end
from ..flags.shared_flags import told_model
from ..pages.row_files import first_rows
from ..pages.texts import span
from ..places.sources_and_sinks import are_same_files, files_at
from .launches import Launches
from .words import RAN, STARTUP, answered, reasons, speeds, tokens_of

_EXAMPLES = 3
_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished job."""

    rows_read: int = 0
    """0 where no reader of prompts was in the job."""
    completions: int
    failed_requests: int
    unreadable_rows: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    recomputed_tokens: int = 0
    """Tokens that were computed again, after preemptions and deaths of engines and managers."""
    seconds: float = 0.0
    """Seconds from the first request to the end of the last."""
    startup: float = 0.0
    """Seconds before the first request; the model was loaded in them."""
    files: list[str] = field(default_factory=list)
    earlier_files: list[str] = field(default_factory=list)
    """Files of the output that this job resumed."""
    dead_letter_files: list[str] = field(default_factory=list)
    sent_to: str = ""
    """The topic of the completions, if they went to one."""
    failures: dict[str, int] = field(default_factory=dict)
    """Dead letters by the classes of their errors."""
    report: str = ""
    """The file of the job's report, if there is one."""
    dead_letters_to: str = ""
    """The topic of the dead letters, if they went to one."""
    near_misses: dict[NearMiss, int] = field(default_factory=dict)
    """The number of rows for each column that may be a misspelt parameter."""

    repeated: RepeatedIds | None = None
    """Rows with the id of another row of the job."""
    answered_ids: RepeatedIds | None = None
    """Rows of a resumed job with the id of another row, which an earlier job answered."""
    unmet_settings: list[UnmetSetting] = field(default_factory=list)
    """Settings of engine or manager that were given and are not in force."""
    launches: Launches | None = None
    """The job in all its launches, where that is counted."""
    failed_changes: list[str] = field(default_factory=list)
    """Why updates of the model were not made, a sentence for each class of errors."""

    @property
    def dead_letters(self) -> int:
        """Rows without a completion."""
        return self.failed_requests + self.unreadable_rows

    @property
    def status(self) -> int:
        """1 if there were rows and the output holds no completion, an earlier run's included; else 0."""
        none = not (self.completions or self.files or self.earlier_files)
        return 1 if self.dead_letters and none else 0


def outcome_of(
    result: Any, kept: Sequence[str] = (), *, output: Address | None = None, letters: Address | None = None
) -> Outcome:
    """The outcome of a pipeline that is done, from its result.

    `kept`: the files of earlier runs. `output`: where completions went; None where that is not known. `letters`: where
    dead letters went; by default with the completions.
    """
    letters = letters or output
    files = files_at(output).existing("completions") if isinstance(output, Files) else []
    metrics = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))
    active = [_value(each) for each in metrics["distributions"] if each.key.metric.name == ACTIVE]
    first = min((each.min for each in active), default=0)
    last = max((each.max for each in active), default=0)
    counts = Counter[str]()
    for counter in metrics["counters"]:
        counts[counter.key.metric.name] += _value(counter)
    return replace(
        outcome_so_far(counts),
        seconds=(last - first) / 1000,
        startup=first / 1000,
        files=[path for path in files if path not in kept],
        earlier_files=list(kept),
        dead_letter_files=_dead_letter_files(output, letters),
        sent_to=_topic(output),
        dead_letters_to=_topic(letters),
        near_misses=counted_near_misses(counts),
        repeated=repeated_ids(counts),
        answered_ids=answered_ids(counts),
        unmet_settings=counted_unmet(counts),
        failed_changes=failed_changes(counts),
    )


def outcome_so_far(counts: Counter[str]) -> Outcome:
    """The part of an Outcome that counters give, also for a job that is not finished."""
    return Outcome(
        rows_read=counts["prompts"] and counts["prompts"] + counts["unreadable_rows"],  # 0: no reader of ours
        completions=counts["requests"] - counts["failures"],
        failed_requests=counts["failures"],
        unreadable_rows=counts["unreadable_rows"],
        prompt_tokens=counts["prompt_tokens"],
        cached_tokens=counts["cached_tokens"],
        generated_tokens=counts["generated_tokens"],
        recomputed_tokens=counts["recomputed_tokens"],
        failures=failures_in(counts),
    )


def _dead_letter_files(output: Address | None, letters: Address | None) -> list[str]:
    if not isinstance(letters, Files):
        return []
    if isinstance(output, Files) and are_same_files(output, letters):
        return files_at(output).existing("dead_letters")
    return files_at(letters).existing("completions")


def _topic(address: Address | None) -> str:
    return str(address) if address is not None and address.is_broker else ""


def _value(metric: Any) -> Any:
    """The committed value; the attempted one on runners that do not report the former."""
    return metric.committed if metric.committed is not None else metric.attempted


def print_summary(outcome: Outcome, *, quiet: bool = False, stderr: IO[str] | None = None) -> None:
    """Print the summary on stdout. `quiet`: print only, in one line on stderr, that every row failed, if so.

    `stderr` is the launcher's own while a job keeps libraries from writing there.
    """
    if not quiet:
        print_at_the_end("\n".join(map(plain, summary_lines(outcome))))
    elif outcome.status:
        message = f"every row failed; dead letters: {_dead_letters(outcome)}"
        print(f"millrace: {plain(' '.join(message.split()))}", file=stderr or sys.stderr, flush=True)


def model_lines(model: ModelConfig) -> list[str]:
    """A line that names the model if it is the built-in one: perhaps --model was forgotten."""
    return [f"model:        {told_model(model)}"] if model.model == EMBEDDED_MODEL else []


def summary_lines(outcome: Outcome) -> list[str]:
    """Counts and speeds, places, a few completions."""
    if not outcome.completions and not outcome.dead_letters:
        return _nothing_done(outcome)
    if not outcome.completions:
        kept = " beside the earlier ones" if outcome.earlier_files else ""
        return [f"no results{kept}: every row failed", *_output(outcome)]
    return [
        f"{counted(outcome.completions, 'completion')} in {span(outcome.seconds)}, {RAN}{_speeds(outcome)}",
        _tokens(outcome),
        *([f"startup:      {span(outcome.startup)} ({STARTUP})"] if outcome.startup else []),
        *([f"launches:     {outcome.launches}"] if outcome.launches and outcome.launches.launches > 1 else []),
        *_output(outcome),
        *_examples(outcome.files),
    ]


def _speeds(outcome: Outcome) -> str:
    told = speeds(outcome.completions, outcome.generated_tokens, outcome.seconds)
    return f": {', '.join(told)}" if told else ""


def count_lines(outcome: Outcome) -> list[str]:
    """Counts of rows and tokens, for a job without an end or without output files; empty if it sent no request."""
    if not outcome.rows_read and not outcome.completions and not outcome.dead_letters:
        return []
    read = f", of {counted(outcome.rows_read, 'row')} read" if outcome.rows_read else ""
    return [f"{answered(outcome.completions, outcome.dead_letters)}{read}", _tokens(outcome)]


def place_line(output: Address) -> str:
    """Where completions are, of a job that is stopped: the topic, or the files that are there."""
    files = files_at(output).existing("completions") if isinstance(output, Files) else []
    return f"completions:  {_topic(output) or places(files)}"


def _tokens(outcome: Outcome) -> str:
    made, again = outcome.generated_tokens, outcome.recomputed_tokens
    return tokens_of(outcome.prompt_tokens, outcome.cached_tokens, made, again)


def _output(outcome: Outcome) -> list[str]:
    return [
        f"completions:  {outcome.sent_to or places(outcome.files or outcome.earlier_files)}",
        f"dead letters: {_dead_letters(outcome)}",
        *([f"report:       {outcome.report}"] if outcome.report else []),
        *_of_ids(outcome),
        *([f"warning:      {sentence('the model', outcome.unmet_settings)}"] if outcome.unmet_settings else []),
        *(f"warning:      {change}" for change in outcome.failed_changes),
        *(f"warning:      {found.sentence(rows)}" for found, rows in sorted(outcome.near_misses.items())),
    ]


def _nothing_done(outcome: Outcome) -> list[str]:
    if not outcome.earlier_files:
        return ["nothing to do: the input has no rows"]
    return [
        "nothing to do: the input has no row that is not completed already",
        f"completions:  {places(outcome.earlier_files)}",
        *_of_ids(outcome),
    ]


def _of_ids(outcome: Outcome) -> list[str]:
    """Warnings of ids that are not unique."""
    told = [
        *([outcome.repeated.of_input()] if outcome.repeated else []),
        *([outcome.answered_ids.of_resumed()] if outcome.answered_ids else []),
    ]
    return [f"warning:      {each}" for each in told]


def places(files: list[str]) -> str:
    """Files with a common prefix, as the summary shows them."""
    if not files:
        return "none"
    return files[0] if len(files) == 1 else f"{files[0]} … {files[-1].rsplit('/', 1)[-1]} ({len(files)} files)"


def _dead_letters(outcome: Outcome) -> str:
    if not outcome.dead_letters:
        return "none"
    several = f" ({reasons(outcome.failures)})" if len(outcome.failures) > 1 else ""
    rows = f"{counted(outcome.dead_letters, 'row')}{several}"
    if outcome.dead_letters_to:
        return f"{rows} in {outcome.dead_letters_to}"
    first = next(iter(_rows(outcome.dead_letter_files, 1)), {"error": "?", "reason": "?"})
    return f"{rows} in {places(outcome.dead_letter_files)}, the first: {_why(first)}"


def _why(dead_letter: dict[str, Any]) -> str:
    """The error's class and sentence, also of a row in OpenAI's batch format."""
    error = dead_letter["error"]
    said = f"{error['code']}: {error['message']}" if isinstance(error, dict) else f"{error}: {dead_letter['reason']}"
    return " ".join(said.split())


def _examples(files: list[str]) -> list[str]:
    shown = [(row["id"], _shown(row)) for row in _rows(files, _EXAMPLES)]
    return [f"  {identity}: {_short(text)}" for identity, text in shown if text is not None]


def _shown(row: dict[str, Any]) -> str | None:
    if "confidences" in row:
        return json.dumps(typed_fields(row), ensure_ascii=False, default=str)
    if "probabilities" in row:
        likeliest = max(dict(row["probabilities"]).values(), default=0.0)
        return f"{', '.join(row['labels']) or 'none'} ({likeliest:.2f})"
    if "scores" in row:
        best = max(row["scores"], key=lambda score: score["logprob"], default=None)
        return None if best is None else f"{best['continuation']} ({best['logprob']:.2f}, the likeliest)"
    if "embedding" in row:
        vector = row["embedding"]
        return f"{len(vector):,} numbers, the first {', '.join(f'{each:.3f}' for each in vector[:3])}"
    if "response" in row and "custom_id" in row:
        first = row["response"]["body"]["choices"][0]
        return str(first["text"] if "text" in first else first["message"]["content"])
    return row.get("text")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def _rows(files: list[str], count: int) -> list[dict[str, Any]]:
    """The first rows of the first file."""
    return first_rows(files[0], count) if files else []
