"""A limit of so much a minute: requests, or tokens. Knows amounts and times; not what they are for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

_BURST = 1.0 / 60
"""The part of a minute's amount that can be taken at once."""
_WEIGHT = 0.2
"""How much the newest value counts in an average."""
_MOST_PART = 4.0


class RateLimit:
    """A bucket that fills steadily. Who takes more than it holds leaves a debt, for which the next ones wait.

    So one request larger than the bucket still passes, and the amount over each minute holds. A debt is what flows in
    within a minute, at most: nobody waits longer at the head of the queue, whatever a server says that it counted.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        """`per_minute` 0 is no limit; `clock` in seconds."""
        self._rate = per_minute / 60
        self._most = max(1.0, per_minute * _BURST)
        self._fullest = max(self._most, per_minute)
        self._least = self._most - self._fullest
        self._level = self._most
        self._clock = clock
        self._at = clock()
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    async def take(self, amount: float) -> None:
        """Take an amount, waiting for one's turn."""
        if self._rate:
            async with self._turn:
                while (seconds := self.wait(amount)) > 0:
                    self._returned.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await self._returned.wait()
                self.add(-amount)

    def add(self, amount: float) -> None:
        """Give back what was not needed, a minute's amount at most, or with a negative amount take more."""
        if self._rate:
            self._fill()
            self._level = min(self._fullest, max(self._least, self._level + amount))
            if amount > 0:
                self._returned.set()

    def wait(self, amount: float) -> float:
        """Seconds until the amount, or a full bucket, is there; 0 if it is there now."""
        self._fill()
        return max(0.0, (min(amount, self._most) - self._level) / self._rate)

    def _fill(self) -> None:
        now = self._clock()
        self._level = max(self._level, min(self._most, self._level + (now - self._at) * self._rate))
        self._at = now


class UsedPart:
    """Which part of an estimate is used, on the average of the last ones; all of it until something is known."""

    def __init__(self) -> None:
        self.part = 1.0

    def learn(self, estimate: float, used: float) -> None:
        """One more estimate, and what was used."""
        self.part += _WEIGHT * (min(_MOST_PART, used / max(1.0, estimate)) - self.part)
