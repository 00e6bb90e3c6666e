"""Finds the sequences that have passed their deadline. Does not end them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .sequence import Sequence
from .sequence_heap import SequenceHeap


class Deadlines:
    """Sequences with a deadline, until it passes or they finish."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heap = SequenceHeap()

    def add(self, sequence: Sequence) -> None:
        """Watch a sequence, if it has a deadline."""
        if sequence.deadline is not None:
            self._heap.push((sequence.deadline, sequence.rank[1]), sequence)

    def passed(self) -> Iterator[Sequence]:
        """Sequences whose deadline has passed, each once."""
        if self._heap:
            now = self._clock()
            while (sequence := self._heap.pop(most=now)) is not None:
                yield sequence
