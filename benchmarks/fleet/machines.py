"""Machines that start, run an engine, die and are paid for, by one clock. It does not know where rows are from."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.fleet.costs import StepCost
from benchmarks.fleet.engine import MAX_NUM_SEQS, Engine
from benchmarks.fleet.rows import Rows


@dataclass(frozen=True)
class FleetConfig:
    """What a fleet is made of."""

    workers: int
    startup_s: float
    """Seconds from the request for a machine until its engine answers."""
    static: bool = False
    """Engines take one batch after another."""
    deaths_per_hour: float = 0.0
    """The hazard rate of each machine that runs: its provider takes it back."""
    spread: float = 0.0
    """Machines are slower than the measured one by as much: 1 + |N(0, spread)|."""
    initial_workers: int | None = None
    """Machines at the start, the others as the autoscaler asks; None: all from the start."""
    seed: int = 0


@dataclass(eq=False)
class Machine:
    """One place of the fleet. A machine that dies is replaced in its place."""

    engine: Engine
    slowness: float
    requested: float
    life: int = 0
    """How many machines there were in this place before."""
    run: int = 0
    """Which run of steps its engine is at; the end of any other one is out of date."""
    place: int = -1
    """Its index among those that are up; -1: it is not."""
    up_since: float = 0.0
    work: Any = None
    """What the source keeps of it."""


_SCALING_S = 30.0
"""Seconds from one decision of the autoscaler to the next."""


class RowSource(Protocol):
    """Where machines get rows from and where answers go."""

    lost_tokens: int
    """Tokens that were computed for answers that nobody got."""

    def start(self, fleet: Fleet) -> None:
        """The fleet is there, and no machine is up."""

    def fill(self, machine: Machine, now: float) -> None:
        """Hand it what it has credits for; its engine is between two runs."""

    def answered(self, machine: Machine, rows: list[int], now: float) -> None:
        """Its engine has the answers to these rows."""

    def lost(self, machine: Machine, now: float) -> None:
        """The machine has died."""

    def backlog(self) -> int:
        """Rows that no machine has."""


Act = Callable[[float, Any, Any], None]
"""What happens at an event: gets the time, whom it concerns, and what tells whether it is out of date."""


class Fleet:
    """Runs until every row is answered."""

    def __init__(self, config: FleetConfig, rows: Rows, cost: StepCost, source: RowSource) -> None:
        self.config = config
        self.rows = rows
        self.random = random.Random(config.seed)
        self.machines: list[Machine] = []
        self.up: list[Machine] = []
        self.now = 0.0
        self.deaths = 0
        self.times_answered = bytearray(len(rows))
        self.latencies: list[float] = []
        self.prefix_tokens = 0
        self._paid_s = 0.0
        self._up_s = 0.0
        self._answered = 0
        self._cost = cost
        self._source = source
        self._events: list[tuple[float, int, Act, Any, Any]] = []
        self._numbers = itertools.count()

    def run(self) -> None:
        """Simulate the job, from the request for the first machines to the last answer."""
        self._source.start(self)
        if self.config.initial_workers is None:
            self.grow(self.config.workers)
        else:
            self.grow(self.config.initial_workers)
            self.after(_SCALING_S, self._scale)
        while self._answered < len(self.rows):
            self.now, _, act, subject, version = heapq.heappop(self._events)
            act(self.now, subject, version)

    def after(self, at: float, act: Act, subject: Any = None, version: Any = None) -> None:
        """Call `act(at, subject, version)` when it is that late."""
        heapq.heappush(self._events, (at, next(self._numbers), act, subject, version))

    def grow(self, count: int) -> None:
        """Ask for so many more machines."""
        for _ in range(count):
            slowness = 1 + abs(self.random.gauss(0, self.config.spread))
            machine = Machine(self._engine(slowness), slowness, self.now)
            self.machines.append(machine)
            self.after(self.now + self.config.startup_s, self._ready, machine)

    def release(self, machine: Machine) -> None:
        """Give back a machine that has nothing to do."""
        self._leave(machine)
        self._paid_s += self.now - machine.requested
        self.machines.remove(machine)

    def paid_s(self) -> float:
        """Seconds of all machines, from their request on."""
        return self._paid_s + sum(self.now - machine.requested for machine in self.machines)

    def up_s(self) -> float:
        """Seconds of all machines in which their engines could work."""
        return self._up_s + sum(self.now - machine.up_since for machine in self.up)

    def answer(self, row: int, at: float) -> None:
        """The row's answer is where it is to go."""
        self.times_answered[row] += 1
        self._answered += 1
        if self.rows.arrivals is not None:
            self.latencies.append(at - self.rows.arrivals[row])

    def wake(self, machine: Machine, now: float) -> None:
        """Its engine has got rows outside the end of a run."""
        if machine.engine.idle:
            self._launch(machine, now)
        elif due := machine.engine.interrupt(now):
            self._ends(machine, due)

    def _scale(self, now: float, _: Any, __: Any) -> None:
        """Grow to as many machines as have more to do than a start takes. The source gives back idle machines."""
        rows, full = self.rows, MAX_NUM_SEQS
        least_s = self._cost.least(sum(rows.prompts), sum(rows.outputs), full) / len(rows) * self._source.backlog()
        wanted = min(int(least_s / self.config.startup_s), self.config.workers)
        self.grow(max(wanted - len(self.machines), 0))
        self.after(now + _SCALING_S, self._scale)

    def _ready(self, now: float, machine: Machine, _: Any) -> None:
        machine.place, machine.up_since = len(self.up), now
        self.up.append(machine)
        if self.config.deaths_per_hour:
            life = self.random.expovariate(self.config.deaths_per_hour / 3600)
            self.after(now + life, self._dies, machine, machine.life)
        self._source.fill(machine, now)
        self._launch(machine, now)

    def _launch(self, machine: Machine, now: float) -> None:
        if due := machine.engine.launch(now):
            self._ends(machine, due)

    def _ends(self, machine: Machine, due: float) -> None:
        machine.run += 1
        self.after(due, self._run_ended, machine, machine.run)

    def _run_ended(self, now: float, machine: Machine, run: int) -> None:
        if run == machine.run:
            if ended := machine.engine.land():
                self._source.answered(machine, ended, now)
                self._source.fill(machine, now)
            self._launch(machine, now)

    def _dies(self, now: float, machine: Machine, life: int) -> None:
        if life != machine.life or machine.place < 0:
            return
        self.deaths += 1
        self._leave(machine)
        self._source.lost(machine, now)
        machine.engine = self._engine(machine.slowness)
        self.after(now + self.config.startup_s, self._ready, machine)

    def _leave(self, machine: Machine) -> None:
        machine.life += 1
        machine.run += 1
        self._up_s += self.now - machine.up_since
        last = self.up.pop()
        if last is not machine:
            self.up[machine.place], last.place = last, machine.place
        machine.place = -1
        self.prefix_tokens += machine.engine.prefix_tokens

    def _engine(self, slowness: float) -> Engine:
        return Engine(self.rows, self._cost, slowness, static=self.config.static)
