"""The queue of waiting sequences, by rank.

Only its front is sorted, so that adding and removing are cheap however many sequences wait: the first `look_ahead` are
in a sorted list, all others in a heap. Knows ranks; not how a rank is made, nor which sequence leaves the queue next.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from ...wire.tally import Tally
from .sequence import QueueRank, Sequence
from .sequence_heap import SequenceHeap

_rank = attrgetter("rank")


class WaitingQueue:
    """Sequences in order of their ranks, which are all different. Iterating gives their ids."""

    def __init__(self, look_ahead: int) -> None:
        self.window: list[Sequence] = []
        """The first `look_ahead` in line, in order."""
        self._look_ahead = look_ahead
        self._sequences: dict[str, Sequence] = {}
        self._beyond = SequenceHeap()
        self._priorities = Tally[int]()
        self._returned: dict[str, Sequence] = {}
        """Sequences that have run before, by id."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._sequences

    def __iter__(self) -> Iterator[str]:
        return (sequence.request_id for sequence in sorted(self._sequences.values(), key=_rank))

    def get(self, request_id: str) -> Sequence | None:
        """The sequence of that id."""
        return self._sequences.get(request_id)

    def values(self) -> list[Sequence]:
        """All waiting sequences, in order."""
        return sorted(self._sequences.values(), key=_rank)

    def add(self, sequence: Sequence, *, returns: bool = False) -> None:
        """Insert at its rank. `returns`: it has run before."""
        self._sequences[sequence.request_id] = sequence
        if returns:
            self._returned[sequence.request_id] = sequence
        self._insert(sequence)

    def _insert(self, sequence: Sequence) -> None:
        self._priorities[sequence.rank[0]] += 1
        if len(self.window) == self._look_ahead and sequence.rank > self.window[-1].rank:
            self._beyond.push(sequence.rank, sequence)
            return
        insort(self.window, sequence, key=_rank)
        if len(self.window) > self._look_ahead:
            last = self.window.pop()
            self._beyond.push(last.rank, last)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence. One beyond the window must be FINISHED afterwards, so that the heap skips it."""
        del self._sequences[sequence.request_id]
        self._returned.pop(sequence.request_id, None)
        self._take(sequence)

    def _take(self, sequence: Sequence) -> None:
        self._priorities[sequence.rank[0]] -= 1
        place = self._place(sequence)
        if place < len(self.window) and self.window[place] is sequence:
            del self.window[place]
            following = self._beyond.pop()
            if following is not None:
                self.window.append(following)

    def move(self, sequence: Sequence, rank: QueueRank) -> None:
        """Give a waiting sequence another rank."""
        if len(self.window) < len(self) and sequence.rank > self.window[-1].rank:
            self._beyond.remove(sequence.rank)
        self._take(sequence)
        sequence.rank = rank
        self._insert(sequence)

    @property
    def least_urgent(self) -> int | None:
        """The highest priority number of all; None if nobody waits."""
        return max(self._priorities, default=None)

    def longest_waiting(self, above: float, *, without_adapter: bool = False) -> Sequence | None:
        """The sequence that has waited longest among those with a priority number over `above`; None without one.

        A preempted sequence counts from its arrival. Sequences that have not run yet are searched in the order in which
        they were queued, up to the first one that suits.
        """
        if self.least_urgent is None or self.least_urgent <= above:
            return None

        def suits(sequence: Sequence) -> bool:
            return sequence.rank[0] > above and not (without_adapter and sequence.adapter is not None)

        found = [each for each in self._returned.values() if suits(each)]
        found += itertools.islice(filter(suits, self._sequences.values()), 1)
        return min(found, key=lambda each: each.rank[1], default=None)

    @property
    def last_near(self) -> QueueRank | None:
        """The rank of the last sequence in the full window; None if the window is not full."""
        return self.window[-1].rank if len(self.window) == self._look_ahead else None

    def ahead_of(self, sequence: Sequence) -> list[Sequence]:
        """Sequences before one in the window."""
        return self.window[: self._place(sequence)]

    def check_integrity(self) -> None:
        """Assert that the window and the heap together hold all waiting sequences, in order."""
        first = self.values()[: self._look_ahead]
        assert first == self.window
        assert len({sequence.rank for sequence in self._sequences.values()}) == len(self)
        assert self._priorities == Tally(sequence.rank[0] for sequence in self._sequences.values())
        beyond = sorted(sequence.request_id for sequence in self._beyond.sequences())
        assert beyond == sorted(self._sequences.keys() - {sequence.request_id for sequence in first})

    def _place(self, sequence: Sequence) -> int:
        return bisect_left(self.window, sequence.rank, key=_rank)
