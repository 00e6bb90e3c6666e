"""Speculative decoding: a sequence's next tokens are guessed, computed in one step, and kept as far as they are right.

docs/explanation/speculation.md says why that does not change the output, and where the numbers below come from. Knows
who may have how many drafts, and what becomes of them; not how they are guessed, nor what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...wire.config import ModelConfig
from ..counters import EngineCounters
from ..interface import Longs, ModelRunner
from ..scheduling.batch_table import BatchTable, Scheduled
from ..scheduling.scheduler import Scheduler
from ..scheduling.sequence import Sequence, SequenceStatus
from .draft_model import DraftModel
from .prompt_lookup import PromptLookup

_MOST_ROWS_CPU = 16
"""Rows up to which a step takes hardly longer than with one: reading the weights takes the time."""
_MOST_ROWS_CUDA = 128
"""The same for a GPU, which has more arithmetic per byte of memory."""
MOST_CERTAIN_LOGITS = 1 << 22
"""Most logits in a step of drafts that constraints force; a step's memory is planned with them."""
_LEAST_ACCEPTANCE = 0.25
"""A draft that is accepted less often costs more than it gives: its row, and a draft model's guess."""


@dataclass(frozen=True)
class Policy:
    """When drafts are worth their rows."""

    most_drafts: int
    """Most drafts of one sequence in one step."""
    most_rows: float
    """Rows of a step beyond which nobody gets drafts."""
    least_acceptance: float
    """Probability below which a draft is not computed."""
    most_certain: int = MOST_CERTAIN_LOGITS
    """Most drafts of a step that constraints force."""

    @classmethod
    def of(cls, num_speculative_tokens: int, device: str, vocab_size: int) -> Policy:
        """The policy for a device, by its name in torch."""
        most_rows = _MOST_ROWS_CUDA if "cuda" in device else _MOST_ROWS_CPU
        most_certain = max(1, MOST_CERTAIN_LOGITS // vocab_size)
        return cls(num_speculative_tokens, most_rows, _LEAST_ACCEPTANCE, most_certain)


def most_draft_rows(config: ModelConfig, device: str, vocab_size: int) -> int:
    """Most rows of logits that drafts take in a step."""
    policy = Policy.of(config.num_speculative_tokens, device, vocab_size)
    return policy.most_certain + (0 if config.speculation == "off" else int(policy.most_rows))


class Drafter(Protocol):
    """Guesses tokens."""

    def draft(self, sequences: List[Sequence], counts: Longs) -> list[list[int]]:
        """Guesses of the next tokens of S running sequences: at most `counts[s]` for sequence s, which has slots."""


@dataclass(frozen=True)
class SamplingRound:
    """Sequences that get a token each, and the rows of a step's logits that it is sampled from."""

    rows: Longs
    sequences: list[Sequence]

    def of(self, logits: Any) -> Any:
        """These rows of the logits; a copy unless they are all."""
        return logits if len(self.rows) == len(logits) else logits[self.rows]


def drafter_of(config: ModelConfig, table: BatchTable, draft_runner: ModelRunner | None) -> Drafter | None:
    """The drafter that the settings name; `draft_runner` is the draft model's, if they name one."""
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
        """True if tokens are guessed at all."""
        return self._drafter is not None

    def extend(self, batch: list[Scheduled]) -> list[Scheduled]:
        """The batch with drafts for decoding sequences, as far as the step has spare rows.

        Drafts preempt nobody, and take no block that running sequences may soon need.
        """
        batch = self._with_certain(batch)
        counts = {} if self._drafter is None else self._counts(batch)
        if self._drafter is None or not counts:
            return batch
        chosen = [batch[place].sequence for place in counts]
        guesses = self._drafter.draft(chosen, np.array(list(counts.values())))
        extended = batch.copy()
        for place, drafts in zip(counts, guesses, strict=True):
            guide = batch[place].sequence.guide
            extended[place] = batch[place].followed_by(drafts if guide is None else guide.valid(drafts))
        return extended

    def _with_certain(self, batch: list[Scheduled]) -> list[Scheduled]:
        """The batch with tokens that constraints force, as drafts.

        These cannot be wrong, so they are worth their rows in a step of any size, as far as there is memory for their
        logits.
        """
        guided = [place for place, each in enumerate(batch) if each.sequence.guide is not None]
        forced = {place: batch[place].sequence.certain_tokens for place in guided if batch[place].samples}
        if not any(forced.values()):
            return batch
        extended = batch.copy()
        spare = self._scheduler.max_num_batched_tokens - sum(scheduled.num_tokens for scheduled in batch)
        spare = min(spare, self._policy.most_certain)
        for place, tokens in forced.items():
            useful = min(len(tokens), self._useful(batch[place].sequence), spare)
            count = self._scheduler.reserve(batch[place].sequence, useful) if useful else 0
            spare -= count
            if count:
                extended[place] = batch[place].followed_by(tokens[:count], are_certain=True)
        return extended

    def rounds(self, sampling: List[Scheduled]) -> Iterator[SamplingRound]:
        """The sequences to sample next and their rows of logits, while drafts equal what was sampled.

        First every sequence's last row. Then, if the sampled token (appended by the caller before the next round) is
        its first draft, the row of that draft, and so on. Rows after a wrong draft are ignored.
        """
        firsts = np.cumsum([0] + [1 + len(scheduled.drafts) for scheduled in sampling])[:-1]
        going = [(scheduled, first, 0) for scheduled, first in zip(sampling, firsts.tolist(), strict=True)]
        while going:
            rows = np.array([first + depth for _, first, depth in going])
            yield SamplingRound(rows, [scheduled.sequence for scheduled, _, _ in going])
            going = [
                (scheduled, first, depth + accepted)
                for scheduled, first, depth in going
                if (accepted := self._accepts(scheduled, depth))
            ]

    def _counts(self, batch: List[Scheduled]) -> dict[int, int]:
        """How many drafts, by place in the batch; everyone's first draft comes before anyone's second."""
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
        if scheduled.num_tokens > 1 or scheduled.drafts or not scheduled.samples or not sequence.num_output_tokens:
            return 0
        worthwhile = sequence.acceptance.worthwhile(sequence.num_output_tokens, self._policy.least_acceptance)
        return min(self._useful(sequence), worthwhile)

    @staticmethod
    def _useful(sequence: Sequence) -> int:
        """Most useful drafts: the last token is sampled anyway."""
        return sequence.conditions.max_tokens - sequence.num_output_tokens - 1

    def _accepts(self, scheduled: Scheduled, depth: int) -> bool:
        """True if the token just sampled is the draft of that depth, and the sequence goes on."""
        sequence, drafts = scheduled.sequence, scheduled.drafts
        goes_on = (
            depth < len(drafts)
            and sequence.status is SequenceStatus.RUNNING
            and not sequence.is_held
            and sequence.token_ids[-1] == drafts[depth]
        )
        if goes_on:
            self._scheduler.accepted(sequence)
        elif drafts and not scheduled.are_certain:
            self._note(scheduled, depth)
        return goes_on

    def _note(self, scheduled: Scheduled, accepted: int) -> None:
        sequence, drafted = scheduled.sequence, len(scheduled.drafts)
        # what a draft model computed of wrong drafts is to be computed again; the last token was sampled, not drafted
        sequence.num_draft_computed_tokens = min(sequence.num_draft_computed_tokens, sequence.num_tokens - 1)
        sequence.acceptance.note(drafted, accepted, sequence.num_output_tokens, self._policy.least_acceptance)
        self._counters.speculated(drafted, accepted)
