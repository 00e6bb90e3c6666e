"""A heap of sequences, which may finish while they are in the heap. Knows keys; not their meaning."""

from __future__ import annotations

import heapq

from .sequence import Sequence, SequenceStatus

_LEAST_SWEPT = 8


class SequenceHeap:
    """Sequences, the one with the smallest key first.

    Finished sequences are skipped when they come up, and all removed once they may be half of the heap.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int], Sequence]] = []
        self._sweep_at = _LEAST_SWEPT
        self._removed: set[tuple[float, int]] = set()
        """Keys of sequences that were removed, but are still in the heap."""

    def __bool__(self) -> bool:
        """True if anything may be in it."""
        return bool(self._heap)

    def push(self, key: tuple[float, int], sequence: Sequence) -> None:
        """`key` differs from all others, but may be the key that the same sequence had before it was removed."""
        if key in self._removed:
            self._removed.remove(key)
            return
        if len(self._heap) >= self._sweep_at:
            self._heap = [(key, each) for key, each in self._heap if self._holds(key, each)]
            self._removed.clear()
            heapq.heapify(self._heap)
            self._sweep_at = max(_LEAST_SWEPT, 2 * len(self._heap))
        heapq.heappush(self._heap, (key, sequence))

    def pop(self, most: float | None = None) -> Sequence | None:
        """Remove and return the unfinished sequence with the smallest key; None if there is none, or if the first
        number of its key is above `most`.
        """
        while self._heap and (most is None or self._heap[0][0][0] <= most):
            key, sequence = heapq.heappop(self._heap)
            if self._holds(key, sequence):
                return sequence
            self._removed.discard(key)
        return None

    def remove(self, key: tuple[float, int]) -> None:
        """Remove an unfinished sequence, which may come back with this key or another."""
        self._removed.add(key)

    def _holds(self, key: tuple[float, int], sequence: Sequence) -> bool:
        return sequence.status is not SequenceStatus.FINISHED and key not in self._removed

    def sequences(self) -> list[Sequence]:
        """All unfinished sequences, in no order."""
        return [sequence for key, sequence in self._heap if self._holds(key, sequence)]
