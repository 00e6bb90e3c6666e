"""Chooses the server of the next request: the one with the least outstanding work of those that work and have room.

Knows servers as URLs, with their circuits; not what is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from .circuit import Circuit


@dataclass(eq=False)
class Server:
    """One server, as its client sees it."""

    url: str
    circuit: Circuit = field(default_factory=Circuit)
    connections: int = 0
    """Requests in flight."""
    work: float = 0.0
    """Tokens that they may come to, of prompts and outputs."""
    paused_until: float = -math.inf
    """The server asked for a pause until then."""
    warned_at: float = -math.inf
    """When the log last said that it failed."""
    counts_oddly: bool = False
    """The log has said that it counts tokens that cannot be."""

    def ready_at(self) -> float:
        """When it may get a request."""
        return max(self.circuit.opens_at(), self.paused_until)


@dataclass(frozen=True)
class Reservation:
    """Room at a server, for one try of one request."""

    server: Server
    work: float
    is_test: bool


class Balancer:
    """The servers and what is reserved at each; only for the thread of its event loop."""

    def __init__(self, urls: Sequence[str], max_connections: int, clock: Callable[[], float]) -> None:
        self.servers = [Server(url) for url in urls]
        self._max_connections = max_connections
        self._clock = clock
        self._changed = asyncio.Event()

    async def enter(self, work: float, *, avoided: Collection[Server] = ()) -> Reservation:
        """A reservation, once a server has room; not at one of `avoided` as long as another server is ready."""
        while (server := self._least_busy(avoided)) is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._next_change()):
                    await self._changed.wait()
        server.connections += 1
        server.work += work
        return Reservation(server, work, server.circuit.begin())

    def leave(self, reservation: Reservation) -> None:
        """The try is over."""
        reservation.server.connections -= 1
        reservation.server.work -= reservation.work
        self.wake()

    def wake(self) -> None:
        """A server may be ready now: who waits looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def has_ready(self, *, besides: Collection[Server]) -> bool:
        """Whether one of the other servers takes a request now."""
        return any(server not in besides for server in self._ready())

    def _ready(self) -> list[Server]:
        now = self._clock()
        return [each for each in self.servers if each.connections < self._max_connections and each.ready_at() <= now]

    def _least_busy(self, avoided: Collection[Server]) -> Server | None:
        return min(self._ready(), key=lambda server: (server in avoided, server.work, server.connections), default=None)

    def _next_change(self) -> float | None:
        """Seconds until a server is ready by itself; None if that depends on others leaving."""
        now = self._clock()
        times = [each.ready_at() - now for each in self.servers]
        coming = [seconds for seconds in times if 0 < seconds < math.inf]
        return min(coming, default=None)
