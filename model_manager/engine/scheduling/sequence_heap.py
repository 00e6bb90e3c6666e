"""A heap of sequences, which may finish while they are in the heap. Knows keys; not their meaning."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from .sequence import Sequence, SequenceStatus

_LEAST_SWEPT = 8


class SequenceHeap:
    """Sequences, the one with the smallest key first.

    Finished sequences are skipped when they come up, and all removed once they may be half of the heap.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int], Sequence]] = []
        self._sweep_at = _LEAST_SWEPT

    def __bool__(self) -> bool:
        """True if anything may be in it."""
        return bool(self._heap)

    def push(self, key: tuple[float, int], sequence: Sequence) -> None:
        """`key` differs from all others."""
        if len(self._heap) >= self._sweep_at:
            self._heap = [(key, each) for key, each in self._heap if each.status is not SequenceStatus.FINISHED]
            heapq.heapify(self._heap)
            self._sweep_at = max(_LEAST_SWEPT, 2 * len(self._heap))
        heapq.heappush(self._heap, (key, sequence))

    def pop(self, most: float | None = None) -> Sequence | None:
        """Remove and return the unfinished sequence with the smallest key; None if there is none, or if the first
        number of its key is above `most`.
        """
        while self._heap and (most is None or self._heap[0][0][0] <= most):
            _, sequence = heapq.heappop(self._heap)
            if sequence.status is not SequenceStatus.FINISHED:
                return sequence
        return None

    def remove(self, sequence: Sequence) -> None:
        """Remove one that may come back. The heap is looked through."""
        self._heap = [(key, each) for key, each in self._heap if each is not sequence]
        heapq.heapify(self._heap)

    def sequences(self) -> list[Sequence]:
        """All unfinished sequences, in no order."""
        return [sequence for _, sequence in self._heap if sequence.status is not SequenceStatus.FINISHED]


def longest_waiting(sequences: Iterable[Sequence], above: float) -> Sequence | None:
    """The first to arrive of those whose priority number is above this one."""
    others = (sequence for sequence in sequences if sequence.rank[0] > above)
    return min(others, key=lambda sequence: sequence.rank[1], default=None)
