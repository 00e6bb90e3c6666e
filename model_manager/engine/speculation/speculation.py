"""Speculative decoding: a sequence's next tokens are guessed, all computed in one step, and kept as far as they are
right. docs/SPECULATION.md says why that leaves the output as it is, and where the numbers below come from.

Knows who may have how many drafts, and what becomes of them; not how they are guessed, nor what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from model_manager.engine.counters import EngineCounters
from model_manager.engine.interface import Longs, ModelRunner
from model_manager.engine.scheduling.batch_table import BatchTable, Scheduled
from model_manager.engine.scheduling.scheduler import Scheduler
from model_manager.engine.scheduling.sequence import Sequence, SequenceStatus
from model_manager.engine.speculation.draft_model import DraftModel
from model_manager.engine.speculation.prompt_lookup import PromptLookup
from model_manager.wire.config import ModelConfig

_MOST_ROWS_CPU = 16
"""Rows up to which a step takes hardly longer than with one, because reading the weights is what takes the time."""
_MOST_ROWS_CUDA = 128
"""The same of a GPU, whose ratio of arithmetic to memory speed is that much higher."""
_LEAST_ACCEPTANCE = 0.25
"""A draft accepted less often costs more than it gives: its row, and for a draft model the guessing."""


@dataclass(frozen=True)
class Policy:
    """When drafts are worth their rows."""

    most_drafts: int
    """Of one sequence in one step."""
    most_rows: float
    """Of a step, beyond which nobody gets drafts."""
    least_acceptance: float
    """Probability below which a draft is not computed."""

    @classmethod
    def of(cls, num_speculative_tokens: int, device: str) -> Policy:
        """The one for a device, by its torch name."""
        return cls(num_speculative_tokens, _MOST_ROWS_CUDA if "cuda" in device else _MOST_ROWS_CPU, _LEAST_ACCEPTANCE)

    @classmethod
    def unrestrained(cls, most_drafts: int) -> Policy:
        """So many drafts for everybody, whatever they cost; to measure what restraint is worth."""
        return cls(most_drafts, math.inf, 0.0)


class Drafter(Protocol):
    """Guesses tokens."""

    def draft(self, sequences: List[Sequence], counts: Longs) -> list[list[int]]:
        """For each of S running sequences at most `counts[s]` guesses of its next tokens, for which it has slots."""


@dataclass(frozen=True)
class Turn:
    """Sequences that get a token each, and the rows of a step's logits that it is sampled from."""

    rows: Longs
    sequences: list[Sequence]

    def of(self, logits: Any) -> Any:
        """Those rows, which are a copy unless they are all."""
        return logits if len(self.rows) == len(logits) else logits[self.rows]


def drafter_of(config: ModelConfig, table: BatchTable, draft_runner: ModelRunner | None) -> Drafter | None:
    """What the settings ask for; `draft_runner` is the draft model's, if they ask for one."""
    if draft_runner is not None:
        return DraftModel(draft_runner, table, max_tokens=config.max_num_batched_tokens)
    return PromptLookup(table) if config.speculation == "prompt_lookup" else None


class Speculation:
    """Adds drafts to batches and says, once these are computed, which logits count; without a drafter adds none."""

    def __init__(self, drafter: Drafter | None, policy: Policy, scheduler: Scheduler, counters: EngineCounters) -> None:
        self._drafter = drafter
        self._policy = policy
        self._scheduler = scheduler
        self._counters = counters

    @property
    def drafts(self) -> bool:
        """Whether tokens are guessed at all."""
        return self._drafter is not None

    def extend(self, batch: list[Scheduled]) -> list[Scheduled]:
        """The batch with drafts for those sequences that decode, as far as the step has rows to spare.

        They preempt nobody, and take no block that running sequences may soon need.
        """
        counts = {} if self._drafter is None else self._counts(batch)
        if self._drafter is None or not counts:
            return batch
        chosen = [batch[place].sequence for place in counts]
        guesses = self._drafter.draft(chosen, np.array(list(counts.values())))
        extended = batch.copy()
        for place, drafts in zip(counts, guesses, strict=True):
            extended[place] = batch[place].followed_by(drafts)
        return extended

    def turns(self, sampling: List[Scheduled]) -> Iterator[Turn]:
        """Whom to sample next, from which rows of the logits, while a draft equals what was sampled.

        First everybody's own last row; then, for those whose sampled token (which the caller has appended before the
        next turn is taken) is their first draft, the row of that draft; and so on. What was computed for the drafts
        behind counts for nothing.
        """
        going = list(sampling)
        rows = np.cumsum([0] + [1 + len(scheduled.drafts) for scheduled in going])[:-1]
        depth = 0
        while going:
            yield Turn(rows, [scheduled.sequence for scheduled in going])
            goes_on = [self._accepts(scheduled, depth) for scheduled in going]
            rows = rows[goes_on] + 1
            going = [scheduled for scheduled, accepted in zip(going, goes_on, strict=True) if accepted]
            depth += 1

    def _counts(self, batch: List[Scheduled]) -> dict[int, int]:
        """How many drafts, by place in the batch; the first draft of each counts before the second of any."""
        most = min(self._policy.most_rows, self._scheduler.max_num_batched_tokens)
        spare = most - sum(scheduled.num_tokens for scheduled in batch)
        if spare <= 0:
            return {}
        wanted = {place: self._wanted(scheduled) for place, scheduled in enumerate(batch)}
        likeliest = sorted(wanted, key=lambda place: -batch[place].sequence.acceptance.rate)
        counts: dict[int, int] = {}
        for depth in range(self._policy.most_drafts):
            for place in likeliest:
                if spare > 0 and wanted[place] > depth:
                    counts[place] = depth + 1
                    spare -= 1
        reserved = {place: self._scheduler.reserve(batch[place].sequence, counts[place]) for place in sorted(counts)}
        return {place: count for place, count in reserved.items() if count}

    def _wanted(self, scheduled: Scheduled) -> float:
        sequence = scheduled.sequence
        if scheduled.num_tokens > 1 or not scheduled.samples or not sequence.num_output_tokens:
            return 0
        useful = sequence.conditions.max_tokens - sequence.num_output_tokens - 1  # the last token is sampled anyway
        return min(useful, sequence.acceptance.worthwhile(sequence.num_output_tokens, self._policy.least_acceptance))

    def _accepts(self, scheduled: Scheduled, depth: int) -> bool:
        """Whether the token just sampled is the draft of that depth, and the sequence goes on."""
        sequence, drafts = scheduled.sequence, scheduled.drafts
        goes_on = (
            depth < len(drafts)
            and sequence.status is SequenceStatus.RUNNING
            and sequence.token_ids[-1] == drafts[depth]
        )
        if goes_on:
            self._scheduler.accepted(sequence)
        elif drafts:
            self._note(scheduled, depth)
        return goes_on

    def _note(self, scheduled: Scheduled, accepted: int) -> None:
        sequence, drafted = scheduled.sequence, len(scheduled.drafts)
        # what a draft model computed of wrong drafts is to be computed again; the last token was sampled, not drafted
        sequence.num_draft_computed_tokens = min(sequence.num_draft_computed_tokens, sequence.num_tokens - 1)
        sequence.acceptance.note(drafted, accepted, sequence.num_output_tokens, self._policy.least_acceptance)
        self._counters.speculated(drafted, accepted)
