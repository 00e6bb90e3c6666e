"""A limit of so much a minute: requests, or tokens. Knows amounts and times; not what they are for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_BURST = 1.0 / 60
"""The part of a minute's amount that can be taken at once."""


class RateLimit:
    """A bucket that fills steadily. Who takes more than it holds leaves a debt, for which the next ones wait.

    So one request larger than the bucket still passes, and the amount over each minute holds.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        """`per_minute` 0 is no limit; `clock` in seconds."""
        self._rate = per_minute / 60
        self._most = max(1.0, per_minute * _BURST)
        self._level = self._most
        self._clock = clock
        self._at = clock()
        self._turn = asyncio.Lock()

    async def take(self, amount: float) -> None:
        """Take an amount, waiting for one's turn."""
        if self._rate:
            async with self._turn:
                while (seconds := self.wait(amount)) > 0:
                    await asyncio.sleep(seconds)
                self.add(-amount)

    def add(self, amount: float) -> None:
        """Give back what was not needed, or with a negative amount take more."""
        if self._rate:
            self._fill()
            self._level = min(self._most, self._level + amount)

    def wait(self, amount: float) -> float:
        """Seconds until the amount, or a full bucket, is there; 0 if it is there now."""
        self._fill()
        return max(0.0, (min(amount, self._most) - self._level) / self._rate)

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._at) * self._rate)
        self._at = now
