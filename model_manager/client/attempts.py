"""Attempts to connect to the manager: whether to try again, how long to pause, which error ends the waiting of callers.

Counts and decides only; its owner connects and waits, and holds a lock for it.
"""

from __future__ import annotations

from ..wire.errors import MillraceError

_LONGEST_PAUSE = 2.0


class Attempts:
    """The attempts of one session."""

    def __init__(self, most_lost: int) -> None:
        """`most_lost`: connections lost in a row, without a result between them, after which one more fails all
        outstanding requests.
        """
        self._most_lost = most_lost
        self.wanted = True
        """Whether anyone needs a connection."""
        self.setbacks = 0
        """How often all outstanding requests have failed. A caller notes it before it waits, and compares after."""
        self._lost_in_row = 0
        self._setback: MillraceError | None = None
        self._final: MillraceError | None = None

    def raise_if_over(self, setbacks: int) -> None:
        """Raise the error that ends a caller's wait, if there is one; `setbacks` is the count when it began to wait."""
        if self._final is not None:
            raise self._final.with_traceback(None)  # else each that raises it adds its frames, which stay
        if self.setbacks != setbacks:
            assert self._setback is not None, "a setback has a reason"
            raise self._setback.with_traceback(None)

    def succeeded(self) -> None:
        """A result came: the count of connections lost in a row starts again."""
        self._lost_in_row = 0

    def lost(self, *, is_waited_for: bool) -> float | None:
        """A connection was lost. Returns the seconds to wait before the next attempt; None after too many in a row."""
        self._lost_in_row += 1
        self.wanted = is_waited_for
        if self._lost_in_row > self._most_lost:
            return None
        return min(_LONGEST_PAUSE, 0.05 * 2 ** min(self._lost_in_row, 10)) if self._lost_in_row > 1 else 0.0

    def give_up(self, error: MillraceError, *, for_good: bool) -> None:
        """All outstanding requests fail. Later requests may try again, unless it is `for_good`."""
        self._setback, self.setbacks = error, self.setbacks + 1
        self._lost_in_row = 0
        self.wanted = False
        if for_good:
            self._final = self._final or error

    def close(self, error: MillraceError) -> None:
        """Every wait from now on raises this error."""
        self._final = error
