"""The share that less urgent sequences have of the tokens, however many more urgent ones come.

Knows priorities and tokens; not blocks, nor which sequence starts next.
"""

from __future__ import annotations

from collections.abc import Iterable

from .batch_table import Scheduled
from .sequence import Rank, Sequence

SHARE = 16
"""Tokens of more urgent sequences for each one of the less urgent that wait."""
TURN = 16
"""Fewest tokens that a sequence generates before its promotion ends, unless more are owed."""
PART = 4
"""A turn is a fourth of the sequence's tokens if that is more: before the next, all may have to be computed again."""
_FIRST = 1 << 62


class Promotion:
    """Less urgent sequences that are promoted for a turn, and how many tokens are owed to the others.

    A promoted sequence is the first of those with the most urgent priority number. A promotion is due when more urgent
    sequences have had SHARE * TURN tokens without less urgent ones having had their part. What a promoted sequence
    computes is taken off, prompts too, so a long prompt is paid for afterwards. At most a quarter of the sequences are
    promoted, and at least one may be.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.promoted: list[Sequence] = []
        self._most = max(1, max_num_seqs // 4)
        self._most_owed = 4 * max(1, max_num_seqs // SHARE) * TURN * SHARE
        self._owed = 0
        """In parts of a token, of which a token has SHARE."""

    @property
    def is_due(self) -> bool:
        """True if a less urgent sequence that waits is to be promoted."""
        return len(self.promoted) < self._most and self._owes(len(self.promoted) + 1)

    def _owes(self, turns: int) -> bool:
        return self._owed >= turns * TURN * SHARE

    def begin(self, sequence: Sequence, most_urgent: int) -> Rank:
        """Note that a sequence is promoted; returns its rank, before all others of this priority number."""
        sequence.turn_ends = _turn_ends(sequence)
        self.promoted.append(sequence)
        return most_urgent, sequence.rank[1] - _FIRST

    def forget(self, sequence: Sequence) -> None:
        """Note that a sequence has ended."""
        if sequence.turn_ends is not None:
            self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        self.promoted.remove(sequence)
        sequence.turn_ends = None

    def end_spent(self) -> list[tuple[Sequence, Rank]]:
        """End the turns of sequences that have had their tokens, unless they have the next turn; returns them, with
        the ranks that they had before.
        """
        spent = []
        for sequence in self.promoted.copy():
            if sequence.turn_ends is not None and sequence.num_tokens >= sequence.turn_ends:
                if self._owes(len(self.promoted)):
                    sequence.turn_ends = _turn_ends(sequence)
                else:
                    self._end(sequence)
                    spent.append((sequence, (sequence.params.priority, sequence.rank[1] + _FIRST)))
        return spent

    def count(self, batch: Iterable[Scheduled], least_urgent: int | None) -> None:
        """Count the tokens of a step. `least_urgent`: the highest priority number of those that wait; None if nobody
        waits for more urgent ones.
        """
        numbers = [sequence.params.priority for sequence in self.promoted]
        least_urgent = max(numbers if least_urgent is None else [*numbers, least_urgent], default=None)
        if least_urgent is None:
            self._owed = 0
            return
        urgent = served = promoted = 0
        for scheduled in batch:
            if scheduled.sequence.turn_ends is not None:
                promoted += scheduled.num_tokens
            elif scheduled.sequence.rank[0] < least_urgent:
                urgent += scheduled.num_tokens
            else:
                served += scheduled.num_tokens
        owed = self._owed + urgent
        owed = max(owed - SHARE * served, min(owed, 0))  # those that run anyway pay for nobody in advance
        self._owed = min(owed, self._most_owed) - SHARE * promoted

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Assert that all promoted sequences are among the unfinished `sequences`."""
        assert {each.request_id for each in sequences if each.turn_ends is not None} == {
            each.request_id for each in self.promoted
        }
        assert len(self.promoted) <= self._most


def _turn_ends(sequence: Sequence) -> int:
    return sequence.num_tokens + max(TURN, sequence.num_tokens // PART)
