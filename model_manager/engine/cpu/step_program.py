"""A step's kernels as one program: all threads run through it together, and meet after each kernel.

So a step enters the thread pool once, not once per operation of every layer, and no Python runs in between. Knows
kernels and records; not what they compute.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum

import numpy as np

from ..interface import Longs
from . import matrix_ops, product_ops, records, row_ops, step_kernels, tile_ops, vector_ops
from .records import Linear, Normalize, Rotate, Run
from .team import Kernel, Team, kernel

_FIELDS = max(len(kind) for kind in (Linear, Normalize, Rotate))
_COUNTERS = 2
_SOURCES = (step_kernels, records, matrix_ops, product_ops, row_ops, tile_ops, vector_ops)
"""What the kernels are made of."""


def step_kernel(make: Callable[..., Callable[[int], None]], *variant: int) -> Kernel:
    """The kernel that `make(*variant)`, a function of step_kernels.py, writes."""
    return kernel(_SOURCES, make, *variant)


class Program:
    """Calls of kernels in order."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._run = step_kernel(step_kernels.run_all)
        self._calls: list[tuple[int, int]] = []
        self._records: list[Longs] = []
        self._array = np.zeros((0, 2), np.int64)
        self._head = np.zeros(len(Run), np.int64)
        libc = ctypes.CDLL(None)
        self._head[Run.COUNT_THREADS] = team.count_threads
        self._head[Run.YIELD] = ctypes.cast(libc.sched_yield, ctypes.c_void_p).value or 0
        self._head[Run.SLEEP] = ctypes.cast(libc.usleep, ctypes.c_void_p).value or 0

    def add(self, kernel: Kernel, fields: dict[IntEnum, int]) -> Longs:
        """Append a call; returns its record, whose fields may be changed between runs."""
        record = np.zeros(_FIELDS, np.int64)
        for field, value in fields.items():
            record[field] = value
        self._records.append(record)
        self.add_foreign(kernel.address, record.ctypes.data)
        return record

    def add_foreign(self, address: int, record: int) -> None:
        """Append a call whose record belongs to another, who also resets its counters."""
        self._calls.append((address, record))
        self._array = np.array(self._calls, np.int64)
        self._head[Run.COUNT] = len(self._calls)
        self._head[Run.CALLS] = self._array.ctypes.data

    def run(self) -> None:
        """Run all calls."""
        for record in self._records:
            record[:_COUNTERS] = 0
        self._head[Run.ARRIVED] = 0
        self._team.run(self._run, self._head.ctypes.data)
