"""Attempts to have a connection: whether another is wanted, how long to wait for it, what ends the waiting of callers.

Counts and decides; its owner holds a lock for it, connects and waits.
"""

from __future__ import annotations

from ..wire.errors import MillraceError

MOST_LOST = 5
"""Connections lost in a row, with no result between them, after which what is outstanding fails."""
_LONGEST_PAUSE = 2.0


class Attempts:
    """The attempts of one session."""

    def __init__(self) -> None:
        self.wanted = True
        """Whether anyone needs a connection."""
        self.setbacks = 0
        """How often everything outstanding failed; who waits notes it before, and compares."""
        self._lost_in_row = 0
        self._setback: MillraceError | None = None
        self._final: MillraceError | None = None

    def raise_if_over(self, setbacks: int) -> None:
        """Raise what ends the waiting of someone who began when there had been so many setbacks."""
        if self._final is not None:
            raise self._final
        if self.setbacks != setbacks:
            assert self._setback is not None, "a setback has a reason"
            raise self._setback

    def succeeded(self) -> None:
        """A result came: whatever was lost before, the next loss is a first one."""
        self._lost_in_row = 0

    def lost(self, *, is_waited_for: bool) -> float | None:
        """A connection ended; seconds to wait before the next attempt, None if that was too often in a row."""
        self._lost_in_row += 1
        self.wanted = is_waited_for
        if self._lost_in_row > MOST_LOST:
            return None
        return min(_LONGEST_PAUSE, 0.05 * 2**self._lost_in_row) if self._lost_in_row > 1 else 0.0

    def give_up(self, error: MillraceError, *, for_good: bool) -> None:
        """Everything outstanding fails; who comes later may try again, unless it is for good."""
        self._setback, self.setbacks = error, self.setbacks + 1
        self._lost_in_row = 0
        self.wanted = False
        if for_good:
            self._final = self._final or error

    def close(self, error: MillraceError) -> None:
        """From now on everybody is told this."""
        self._final = error
