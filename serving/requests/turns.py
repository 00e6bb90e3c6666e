"""Turns: clients that wait for the same thing get it one after another, however many requests each of them has.

Self-clocked fair queueing (S. J. Golestani, 1994): a request's turn is one later than the turn of its client's request
before it, or than the turn that is being served. Knows no request and no HTTP; a client is any hashable value.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
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


class FairSemaphore:
    """Slots for a few at a time, in an event loop; who waits for one gets it in turn. The last slot that is free is
    for a client that has none.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._taken: Counter[Hashable] = Counter()
        self._turns = Turns()
        self._waiting: dict[Hashable, deque[tuple[int, asyncio.Future[None]]]] = {}
        """By client, the first of each client's first."""

    @asynccontextmanager
    async def of(self, client: Hashable) -> AsyncIterator[None]:
        """Have a slot, once it is this client's turn."""
        await self._enter(client)
        try:
            yield
        finally:
            self._leave(client)

    async def _enter(self, client: Hashable) -> None:
        turn = self._turns.next(client)
        if self._has_slot(client):  # then none of those that wait may have it
            self._take(client, turn)
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append((turn, given))
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():  # it was given the slot as it stopped waiting
                self._leave(client)
            raise

    def _has_slot(self, client: Hashable) -> bool:
        return self._free > (1 if self._taken[client] else 0)

    def _take(self, client: Hashable, turn: int) -> None:
        self._free -= 1
        self._taken[client] += 1
        self._turns.serve(turn)

    def _leave(self, client: Hashable) -> None:
        self._free += 1
        self._taken[client] -= 1
        self._taken += Counter()  # forgets who has none
        while (following := self._following()) is not None:
            turn, given = self._waiting[following].popleft()
            self._take(following, turn)
            given.set_result(None)

    def _following(self) -> Hashable | None:
        """The client whose turn it is, of those that may have a slot; None if there is none."""
        if not self._free:
            return None
        for client, queue in [*self._waiting.items()]:
            while queue and queue[0][1].done():
                queue.popleft()
            if not queue:
                del self._waiting[client]
        allowed = (client for client in self._waiting if self._has_slot(client))
        return min(allowed, key=lambda client: self._waiting[client][0][0], default=None)
