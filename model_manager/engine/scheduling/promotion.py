"""The share that less urgent sequences have of the tokens, however many more urgent ones come.

Knows priorities and tokens; not blocks, nor which sequence starts next.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Sequences

from .batch_table import Scheduled
from .sequence import QueueRank, Sequence

SHARE = 16
"""For so many tokens of more urgent sequences, the less urgent sequences that wait get one token."""
TURN, TURN_PART, LONGEST_TURN = 16, 4, 64
"""Tokens that a sequence generates before its promotion ends: a fourth of the tokens that it has, 16 to 64. All its
tokens may have to be computed again before its next turn, so a longer sequence gets a longer turn.
"""
PART_OF_ROWS = 4
"""A fourth of the sequences that run may be promoted, and at least one."""
PART_OF_BLOCKS = 4
"""Beside other promoted sequences no sequence is promoted if they all need more than a fourth of the blocks."""
BANK = 4
"""Tokens that less urgent sequences get without a promotion count as paid ahead, up to so many times the most owed."""
PROMOTED = -(1 << 62)
"""The priority number of promoted sequences, lower than any request's."""


class Promotion:
    """Less urgent sequences that are promoted for a turn, and how many tokens are owed to the others.

    A promoted sequence is before all others in line. A promotion is due when more urgent sequences have had SHARE *
    TURN tokens without less urgent ones having had their part. What a promoted sequence computes is taken off, prompts
    too, so a long prompt is paid for afterwards.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.promoted: list[Sequence] = []
        self._most = max(1, max_num_seqs // PART_OF_ROWS)
        self._most_owed = max(4, self._most) * TURN * SHARE
        self._owed = 0
        """In parts of a token; SHARE parts are one token."""

    @property
    def is_due(self) -> bool:
        """True if another waiting sequence is to be promoted. Promoted sequences that wait for an adapter are not
        counted as promoted.
        """
        promoted = sum(not each.lacks_adapter for each in self.promoted)
        return promoted < self._most and self._owes(promoted + 1)

    def _owes(self, turns: int) -> bool:
        return self._owed >= turns * TURN * SHARE

    def begin(self, sequence: Sequence) -> QueueRank:
        """Note that a sequence is promoted; returns its rank."""
        assert sequence.turn_ends is None
        sequence.turn_ends = _turn_ends(sequence)
        sequence.overtaken, sequence.overtaken_before = 0, sequence.overtaken
        self.promoted.append(sequence)
        return PROMOTED, sequence.rank[1]

    def forget(self, sequence: Sequence) -> None:
        """Note that a sequence has ended; it has its own rank again."""
        if sequence.turn_ends is not None:
            sequence.rank = self._end(sequence)

    def _end(self, sequence: Sequence) -> QueueRank:
        """Its rank before."""
        self.promoted.remove(sequence)
        sequence.turn_ends = None
        sequence.overtaken = sequence.overtaken_before
        return sequence.params.priority, sequence.rank[1]

    def end_spent(self) -> list[tuple[Sequence, QueueRank]]:
        """End the turns of sequences that have had their tokens, unless they have the next turn; returns them, with
        the ranks that they had before.
        """
        spent = []
        for sequence in self.promoted.copy():
            if sequence.turn_ends is not None and sequence.num_tokens >= sequence.turn_ends:
                if self._owes(len(self.promoted)):
                    sequence.turn_ends = _turn_ends(sequence)
                else:
                    spent.append((sequence, self._end(sequence)))
        return spent

    def count(self, batch: Sequences[Scheduled], most_urgent: float, least_urgent: int | None) -> None:
        """Count the tokens of a step. `most_urgent`: the lowest priority number of all sequences. `least_urgent`: the
        highest priority number of the sequences that wait; None if no sequence waits for a more urgent one.
        """
        numbers = [sequence.params.priority for sequence in self.promoted]
        least_urgent = max(numbers if least_urgent is None else [*numbers, least_urgent], default=None)
        if least_urgent is None:
            self._owed = min(self._owed, 0)
            if self._owed:
                repaid = sum(each.num_tokens for each in batch if each.sequence.rank[0] <= most_urgent)
                self._owed = min(0, self._owed + repaid)
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
        owed = max(owed - SHARE * served, min(owed, -BANK * self._most_owed))
        self._owed = min(owed, self._most_owed) - SHARE * promoted

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Assert that each unfinished sequence of `sequences` that has a turn is promoted once, and no other."""
        having = [each.request_id for each in sequences if each.turn_ends is not None]
        assert sorted(having) == sorted(each.request_id for each in self.promoted)
        assert all(each.rank[0] == PROMOTED for each in self.promoted)
        assert sum(not each.lacks_adapter for each in self.promoted) <= self._most + 1  # which has found its adapter


def _turn_ends(sequence: Sequence) -> int:
    return sequence.num_tokens + min(max(TURN, sequence.num_tokens // TURN_PART), LONGEST_TURN)
