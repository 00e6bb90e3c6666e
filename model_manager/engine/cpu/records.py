"""Records of a compiled step's kernels: int64s in memory, most of them addresses. All strides are in bytes.

Threads draw tasks from TASKS and their own number from THREADS, which are zero when the step begins.
"""

from __future__ import annotations

import enum

from .vector_ops import load_int64


class Linear(enum.IntEnum):
    """Record of a product: OUTPUT [rows, columns] from INPUT [rows, 4 * STEPS bytes] and packed weights."""

    TASKS = 0
    THREADS = 1
    ROWS = 2
    INPUT = 3
    INPUT_STRIDE = 4
    INPUT_SCALES = 5
    WEIGHT = 6
    STEPS = 7
    PANELS = 8
    SCALES = 9
    OFFSETS = 10
    BIAS = 11
    OUTPUT = 12
    OUTPUT_STRIDE = 13
    SUMS = 14
    GATED = 15
    TEAM = 16
    """Threads that share the panels."""
    NEXT_WEIGHT = 17
    """The packed weights that are read after these, or 0."""
    NEXT_STEPS = 18
    TILE_SHAPES = 19
    """Address of what `configure_tiles` reads; 0 where vector instructions compute the product."""


class Normalize(enum.IntEnum):
    """Record of a normalisation of rows of float32; ROW_INDEX (int64s, or 0 for all in order) names them."""

    TASKS = 0
    THREADS = 1
    ROWS = 2
    INPUT = 3
    INPUT_STRIDE = 4
    ROW_INDEX = 5
    DIM = 6
    WEIGHT = 7
    BIAS = 8
    EPSILON = 9
    OUTPUT = 10
    OUTPUT_STRIDE = 11
    OUTPUT_SCALES = 12
    SCRATCH = 13


class Quantize(enum.IntEnum):
    """Record of rows that become int8."""

    TASKS = 0
    THREADS = 1
    ROWS = 2
    INPUT = 3
    INPUT_STRIDE = 4
    DIM = 5
    OUTPUT = 6
    OUTPUT_STRIDE = 7
    OUTPUT_SCALES = 8


class Rotate(enum.IntEnum):
    """Record of the rotary embedding of HEADS query heads and KV_HEADS key heads that lie one after the other."""

    TASKS = 0
    THREADS = 1
    ROWS = 2
    INPUT = 3
    INPUT_STRIDE = 4
    HEADS = 5
    KV_HEADS = 6
    DIM = 7
    HALF = 8
    COS = 9
    SIN = 10
    ANGLE_STRIDE = 11
    QUERY_NORM = 12
    KEY_NORM = 13
    EPSILON = 14


class Run(enum.IntEnum):
    """Record of a whole step: CALLS is [COUNT, 2] of kernel and record."""

    ARRIVED = 0
    COUNT = 1
    CALLS = 2
    COUNT_THREADS = 3
    """Address of a function that says how many threads run this; 0 for one."""
    YIELD = 4
    """Address of sched_yield."""
    SLEEP = 5
    """Address of usleep."""


get = load_int64
"""A field of the record at that address."""
