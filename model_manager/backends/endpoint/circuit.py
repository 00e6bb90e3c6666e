"""Circuit breaker of one server: after several failures in a row it gets no request for a while, then one as a test.

        closed ──failures in a row──► open ──its time is over, one request is sent──► tested
          ▲                            ▲                                                 │
          └──────────success───────────┴─────────────────────failure─────────────────────┘

Knows successes, failures and times; every method takes the time now, in seconds on one clock.
"""

from __future__ import annotations

import math

FAILURES = 5
"""Failures in a row that open it."""
FIRST_PAUSE = 1.0
"""Seconds that it is open at first; twice as long after each failed test."""
LONGEST_PAUSE = 30.0


class Circuit:
    """The state of one server."""

    def __init__(self) -> None:
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._open_until: float | None = None
        self._is_tested = False

    @property
    def is_closed(self) -> bool:
        """Whether requests flow."""
        return self._open_until is None

    def opens_at(self) -> float:
        """When it lets a request pass: minus infinity if it is closed, infinity while a test runs."""
        if self._open_until is None:
            return -math.inf
        return math.inf if self._is_tested else self._open_until

    def begin(self) -> bool:
        """A request is sent; returns whether it is the test."""
        self._is_tested = self._open_until is not None
        return self._is_tested

    def succeeded(self) -> None:
        """A request was answered: the server works."""
        self._failures, self._pause = 0, FIRST_PAUSE
        self._open_until, self._is_tested = None, False

    def failed(self, now: float, *, was_test: bool) -> bool:
        """A request failed; returns whether this opened the circuit. What was sent before it opened changes nothing."""
        self._failures += 1
        if was_test:
            self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        elif self._open_until is not None or self._failures < FAILURES:
            return False
        self._open_until, self._is_tested = now + self._pause, False
        return True

    def eased(self, now: float) -> None:
        """The server answers questions about itself: if it is open, then for the first pause only."""
        if self._open_until is not None:
            self._pause = FIRST_PAUSE
            self._open_until = min(self._open_until, now + FIRST_PAUSE)

    def forgotten(self, *, was_test: bool) -> None:
        """A request was given up before its end: a test tells nothing, the next request is the test."""
        if was_test:
            self._is_tested = False
