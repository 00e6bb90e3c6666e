"""Turns: clients that wait for the same thing get it one after another, however many requests each of them has.

Self-clocked fair queueing (S. J. Golestani, 1994): a request's turn is one later than the turn of its client's request
before it, or than the turn that is being served. Knows no request and no HTTP; a client is any hashable value.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

_MOST_KEPT = 1000
"""Clients whose last turn is kept before those that count no more are forgotten."""


class Turns:
    """Numbers the requests of all clients; the smallest number is served first. One thread at a time may use it."""

    def __init__(self) -> None:
        self._served = 0
        self._last: dict[Hashable, int] = {}

    def next(self, client: Hashable, count: int = 1) -> int:
        """The turn of a client's next request, which counts as so many."""
        if len(self._last) > _MOST_KEPT:
            self._last = {each: turn for each, turn in self._last.items() if turn > self._served}
        turn = max(self._served, self._last.get(client, 0)) + count
        self._last[client] = turn
        return turn

    def serve(self, turn: int) -> None:
        """A request of this turn is served."""
        self._served = max(self._served, turn)


class Slots:
    """Slots for a few at a time, in an event loop; who waits for one gets it in turn."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._turns = Turns()
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def of(self, client: Hashable) -> AsyncIterator[None]:
        """Have a slot, once it is this client's turn."""
        await self._enter(client)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, client: Hashable) -> None:
        turn = self._turns.next(client)
        if self._free:
            self._free -= 1
            self._turns.serve(turn)
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (turn, next(self._numbers), given))
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():  # it was given the slot as it stopped waiting
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn, _, given = heapq.heappop(self._waiting)
            if not given.done():
                self._turns.serve(turn)
                given.set_result(None)
                return
        self._free += 1
