"""Rows of files as Beam hands them out: in bundles, which commit as a whole, and whose rest an idle machine gets.

A machine that dies loses its open bundles: their rows are computed again, those also whose answers it had.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field

from benchmarks.fleet.engine import MAX_NUM_SEQS
from benchmarks.fleet.machines import Fleet, Machine
from millrace.model_manager.wire.config import ManagerConfig

CREDITS = int(MAX_NUM_SEQS * (1 + ManagerConfig().lookahead))
"""Rows that a machine's engine holds, running and waiting."""
AT_ONCE = 4
"""Bundles that a machine has open, as a worker on Dataflow has (docs/tutorials/dataflow.md)."""
SPLIT_S = 1.0
"""Seconds from a machine's question for work to the answer, where a bundle has to be split for it."""


@dataclass(eq=False)
class Bundle:
    """Rows `first` to `end`; the rows before `next` are claimed."""

    first: int
    end: int
    next: int = -1
    answered: int = 0

    def __post_init__(self) -> None:
        self.next = self.first

    @property
    def unclaimed(self) -> int:
        return self.end - self.next


@dataclass
class _Work:
    open: list[Bundle] = field(default_factory=list)
    claiming: deque[Bundle] = field(default_factory=deque)
    """The open bundles that have unclaimed rows; each gets its turn."""
    asking: bool = False
    """It has asked for work, or knows that there is none."""


class Bundles:
    """A RowSource of a bounded input."""

    def __init__(self, bundle_rows: int, *, splitting: bool = True) -> None:
        self.lost_tokens = 0
        self._bundle_rows = bundle_rows
        self._splitting = splitting
        self._largest: list[tuple[int, int, Bundle]] = []
        """Open bundles by their unclaimed rows, which may be fewer by now: a heap."""
        self._numbers = itertools.count()
        self._starved: list[tuple[Machine, int]] = []
        """Machines, each with its life, that found no work: they are asked again when a machine's bundles come back."""

    def start(self, fleet: Fleet) -> None:
        self._fleet = fleet
        count, size = len(fleet.rows), self._bundle_rows
        self._pool = deque(Bundle(first, min(first + size, count)) for first in range(0, count, size))
        self._pooled = count
        self._owner: list[Bundle | None] = [None] * count

    def backlog(self) -> int:
        return self._pooled

    def fill(self, machine: Machine, now: float) -> None:
        machine.work = work = machine.work or _Work()
        waiting, owner = machine.engine.waiting, self._owner
        for _ in range(CREDITS - machine.engine.held):
            while len(work.open) < AT_ONCE and self._pool:
                self._open(work, self._take())
            if not work.claiming:
                break
            bundle = work.claiming.popleft()
            owner[bundle.next] = bundle
            waiting.append(bundle.next)
            bundle.next += 1
            if bundle.next < bundle.end:
                work.claiming.append(bundle)
        if len(work.open) < AT_ONCE and not work.asking:
            work.asking = True
            self._fleet.after(now + SPLIT_S, self._asked, machine, machine.life)

    def answered(self, machine: Machine, rows: list[int], now: float) -> None:
        for row in rows:
            bundle = self._owner[row]
            assert bundle is not None
            bundle.answered += 1
            if bundle.answered == bundle.end - bundle.first:
                machine.work.open.remove(bundle)
                for each in range(bundle.first, bundle.end):
                    self._fleet.answer(each, now)

    def lost(self, machine: Machine, now: float) -> None:
        rows = self._fleet.rows
        bundles: list[Bundle] = machine.work.open
        computed = sum(rows.tokens(row) for bundle in bundles for row in range(bundle.first, bundle.next))
        self.lost_tokens += computed + sum(tokens - rows.tokens(row) for row, tokens in machine.engine.computed(now))
        for bundle in bundles:
            self._pool.appendleft(Bundle(bundle.first, bundle.end))
            self._pooled += bundle.end - bundle.first
            bundle.end = bundle.next  # nothing of it can be split off
        machine.work = None
        starved, self._starved = self._starved, []
        for other, life in starved:
            self._fleet.after(now, self._asked, other, life)

    def _asked(self, now: float, machine: Machine, life: int) -> None:
        """The runner answers a machine that has room for bundles."""
        if life != machine.life:
            return
        work: _Work = machine.work
        while len(work.open) < AT_ONCE and (bundle := self._take() if self._pool else self._split()):
            self._open(work, bundle)
        work.asking = len(work.open) < AT_ONCE
        if work.asking:
            self._nothing_for(machine)
        held = machine.engine.held
        if machine.place >= 0:
            self.fill(machine, now)
            if machine.engine.held > held:
                self._fleet.wake(machine, now)

    def _nothing_for(self, machine: Machine) -> None:
        self._starved.append((machine, machine.life))
        if self._fleet.config.initial_workers is not None and not machine.work.open:
            self._fleet.release(machine)

    def _take(self) -> Bundle:
        bundle = self._pool.popleft()
        self._pooled -= bundle.end - bundle.first
        return bundle

    def _open(self, work: _Work, bundle: Bundle) -> None:
        work.open.append(bundle)
        work.claiming.append(bundle)
        self._offer(bundle)

    def _offer(self, bundle: Bundle) -> None:
        heapq.heappush(self._largest, (-bundle.unclaimed, next(self._numbers), bundle))

    def _split(self) -> Bundle | None:
        """Half of the unclaimed rows of the bundle that has most; None if none has two."""
        while self._splitting and self._largest:
            most, _, bundle = heapq.heappop(self._largest)
            if bundle.unclaimed < 2:
                continue
            if bundle.unclaimed == -most:
                rest = Bundle(bundle.end - bundle.unclaimed // 2, bundle.end)
                bundle.end = rest.first
                self._offer(bundle)
                return rest
            self._offer(bundle)
        return None
