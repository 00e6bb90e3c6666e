"""Rows one by one, each acknowledged when it is answered: a broker that machines pull from, and servers behind a load
balancer.

A machine that dies loses the rows that it has not answered: they are computed again.
"""

from __future__ import annotations

from collections import deque

from benchmarks.fleet.bundles import CREDITS
from benchmarks.fleet.machines import Fleet, Machine

_TRIES = 8
"""Machines that are looked at for one with room, before a row waits."""
HOP_S = 0.001
"""Seconds from a client or a server to the load balancer or back."""
BACKOFF_S = 1.0
"""Seconds until a refused row is sent again."""
QUEUED_PER_SERVER = 4
"""Rows that the load balancer lets wait for each server of the pool."""


class Broker:
    """A RowSource whose messages any machine with a credit may get."""

    def __init__(self) -> None:
        self.lost_tokens = 0
        self.refused = 0
        self._waiting: deque[int] = deque()
        self._next = 0
        """The first row that has not come."""

    def start(self, fleet: Fleet) -> None:
        self._fleet = fleet
        if fleet.rows.arrivals:
            fleet.after(fleet.rows.arrivals[0], self._arrives)

    def backlog(self) -> int:
        return len(self._waiting)

    def fill(self, machine: Machine, now: float) -> None:  # noqa: ARG002 - its machines are no hop away
        machine.work = set() if machine.work is None else machine.work
        while len(machine.work) < CREDITS and self._waiting:
            machine.work.add(row := self._waiting.popleft())
            machine.engine.waiting.append(row)

    def answered(self, machine: Machine, rows: list[int], now: float) -> None:
        for row in rows:
            machine.work.remove(row)
            self._fleet.answer(row, now)

    def lost(self, machine: Machine, now: float) -> None:
        self.lost_tokens += sum(tokens for _, tokens in machine.engine.computed(now))
        rows, machine.work = sorted(machine.work), None
        for row in rows:
            self._offer(row, now)

    def _arrives(self, now: float, _: object, __: object) -> None:
        row, arrivals = self._next, self._fleet.rows.arrivals
        assert arrivals is not None
        self._next += 1
        if self._next < len(arrivals):
            self._fleet.after(arrivals[self._next], self._arrives)
        self._offer(row, now)

    def _offer(self, row: int, now: float) -> None:
        """Give the row to the first of a few machines, picked at random, that has a credit; else the row waits."""
        up = self._fleet.up
        for _ in range(_TRIES if up else 0):
            machine = self._fleet.random.choice(up)
            if len(machine.work) < CREDITS:
                machine.work.add(row)
                machine.engine.waiting.append(row)
                self._fleet.wake(machine, now)
                return
        self._waiting.append(row)


class Balancer(Broker):
    """A RowSource that sends a row to the less busy of two servers, a hop away; a full queue refuses rows.

    Without arrivals, clients keep as many rows at it as servers and queue take.
    """

    def backlog(self) -> int:
        return len(self._waiting) + self._not_sent()

    def fill(self, machine: Machine, now: float) -> None:
        """Fill a machine. The source hears of its room a hop later, and what it sends arrives another hop later."""
        machine.work = set() if machine.work is None else machine.work
        while len(machine.work) < CREDITS and (self._waiting or self._not_sent()):
            if self._waiting:
                row = self._waiting.popleft()
            else:
                row, self._next = self._next, self._next + 1
            self._send(row, machine, now + HOP_S)

    def answered(self, machine: Machine, rows: list[int], now: float) -> None:
        super().answered(machine, rows, now + HOP_S)

    def _not_sent(self) -> int:
        """Rows of a bounded input that are still with the clients."""
        return 0 if self._fleet.rows.arrivals else len(self._fleet.rows) - self._next

    def _offer(self, row: int, now: float) -> None:
        up, random = self._fleet.up, self._fleet.random
        for _ in range(_TRIES if up else 0):
            machine = min(random.choice(up), random.choice(up), key=lambda each: len(each.work))
            if len(machine.work) < CREDITS:
                self._send(row, machine, now)
                return
        if self._fleet.rows.arrivals and len(self._waiting) >= QUEUED_PER_SERVER * len(self._fleet.machines):
            self.refused += 1
            self._fleet.after(now + BACKOFF_S, self._again, row)
        else:
            self._waiting.append(row)

    def _again(self, now: float, row: int, _: object) -> None:
        self._offer(row, now)

    def _send(self, row: int, machine: Machine, now: float) -> None:
        machine.work.add(row)
        self._fleet.after(now + HOP_S, self._delivered, (machine, row), machine.life)

    def _delivered(self, now: float, sent: tuple[Machine, int], life: int) -> None:
        machine, row = sent
        if life == machine.life:  # or its death has sent the row elsewhere
            machine.engine.waiting.append(row)
            self._fleet.wake(machine, now)
