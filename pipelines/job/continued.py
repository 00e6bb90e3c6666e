"""Counts that a process tells of, and that go on where the next one begins at 0 again: the manager's, an engine's."""

from __future__ import annotations

from ..pages.sketches import Sample


class Continued:
    """A row of counters that only grow; one that is lower than before comes from a new process."""

    def __init__(self, start: tuple[int, ...] = ()) -> None:
        """`start`: counts that are not ours, from before."""
        self._counted = start
        self._sum = [-count for count in start]

    def add(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """The latest counts; returns what all processes have counted together since the start."""
        if any(now < before for now, before in zip(counts, self._counted, strict=False)):
            self._sum = [total + before for total, before in zip(self._sum, self._counted, strict=True)]
        self._counted = counts
        self._sum = self._sum or [0] * len(counts)
        return tuple(total + count for total, count in zip(self._sum, counts, strict=True))

    def point(self, sample: Sample) -> Sample:
        """The same for a point in time."""
        return Sample(sample.at, *self.add((sample.done, sample.tokens)))
