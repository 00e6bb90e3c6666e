"""A step's kernels as one program: all threads run through it together, and meet after each kernel.

So a step enters the thread pool once, not once per operation of every layer, and no Python runs in between. Knows
kernels and records; not what they compute.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from ..interface import Longs
from . import matrix_ops, product_ops, records, row_ops, step_kernels, tile_ops, vector_ops
from .records import Linear, Normalize, Rotate, Run
from .team import Kernel, Team

_FIELDS = max(len(kind) for kind in (Linear, Normalize, Rotate))
_COUNTERS = 2
_SOURCES = (step_kernels, records, matrix_ops, product_ops, row_ops, tile_ops, vector_ops)
"""What the kernels are made of."""


class Kernels:
    """The kernels in use, each compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[Any, ...], Kernel] = {}

    def get(self, make: Callable[..., Callable[[int], None]], *variant: int) -> Kernel:
        """The kernel that `make(*variant)` writes."""
        key = (make.__name__, *variant)
        if key not in self._compiled:
            sources = [Path(inspect.getfile(module)) for module in _SOURCES]
            self._compiled[key] = Kernel(make(*map(int, variant)), sources)
        return self._compiled[key]


class Program:
    """Calls of kernels in order."""

    def __init__(self, team: Team, kernels: Kernels) -> None:
        self._team = team
        self._kernels = kernels
        self._run = kernels.get(step_kernels.run_all)
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
