"""The kernels of a compiled step: each takes the address of one record, and every thread of the team runs it.

Threads draw tasks from TASKS and their own number from THREADS, which are zero when the step begins. Knows rows, panels
and addresses; not which layer a record belongs to. All strides are in bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from numba import literally, njit

from .matrix_ops import PANEL, finish_row, multiply_tile
from .row_ops import (
    arrive,
    call_count,
    call_kernel,
    look,
    normalize_head,
    normalize_row,
    pause,
    quantize_row,
    rotate_head,
)
from .vector_ops import fetch_add, load_int64

TILE_ROWS = 8
"""Rows of a tile; buffers have as many rows to spare, which are read but not used."""
TILE_BYTES = 2 * 4 * PANEL * TILE_ROWS
"""Two tiles, for products that come in pairs."""
_CHUNK_ROWS = 128
_SHARES = 3
"""Cache lines of a panel that one step reads."""
_FEW_TILES = 2
"""With so few tiles, each step must prefetch more than one line to fetch a whole panel."""
_ROWS_A_TASK = 4
_SPINS = 256
"""Reads of a counter, with a pause after each, before the thread yields its core."""
_OFFERS = 64
"""Yields after which a thread sleeps between reads: others use the core that it waits for."""
_NAP = 50
"""Microseconds."""


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
    TILES = 14
    GATED = 15
    TEAM = 16
    """Threads that share the panels."""
    NEXT_WEIGHT = 17
    """The packed weights that are read after these, or 0."""
    NEXT_STEPS = 18


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


def run_all() -> Callable[[int], None]:
    """A kernel for Run records: every kernel of a step, one after the other, all threads together."""

    def kernel(record: int) -> None:
        _run(record)

    return kernel


def linear(fmt: int, epilogue: int, itemsize: int) -> Callable[[int], None]:
    """A kernel for Linear records; `itemsize` is the output's, in bytes."""

    def kernel(record: int) -> None:
        _linear(record, fmt, epilogue, itemsize)

    return kernel


def normalize(norm: int, fmt: int) -> Callable[[int], None]:
    """A kernel for Normalize records."""

    def kernel(record: int) -> None:
        _normalize(record, norm, fmt)

    return kernel


def quantize(itemsize: int) -> Callable[[int], None]:
    """A kernel for Quantize records; `itemsize` is the input's, in bytes."""

    def kernel(record: int) -> None:
        _quantize(record, itemsize)

    return kernel


def rotate(lanes: int, itemsize: int) -> Callable[[int], None]:
    """A kernel for Rotate records."""

    def kernel(record: int) -> None:
        _rotate(record, lanes, itemsize)

    return kernel


@njit(nogil=True)
def _get(record: int, field: Any) -> Any:
    return load_int64(record, field)


@njit(nogil=True)
def _run(record: int) -> None:
    calls, counts = _get(record, Run.CALLS), _get(record, Run.COUNT_THREADS)
    threads = call_count(counts) if counts else 1
    for index in range(_get(record, Run.COUNT)):
        call_kernel(load_int64(calls, 2 * index), load_int64(calls, 2 * index + 1))
        arrive(record + 8 * Run.ARRIVED)
        _wait(record, (index + 1) * threads)


@njit(nogil=True)
def _wait(record: int, arrivals: int) -> None:
    """Wait until so many threads have arrived."""
    spins = 0
    while look(record + 8 * Run.ARRIVED) < arrivals:
        pause()
        spins += 1
        if spins > _SPINS * _OFFERS:
            call_kernel(_get(record, Run.SLEEP), _NAP)
        elif spins % _SPINS == 0:
            call_kernel(_get(record, Run.YIELD), 0)


@njit(nogil=True)
def _linear(record: int, fmt: Any, epilogue: Any, itemsize: Any) -> None:
    thread = fetch_add(record + 8 * Linear.THREADS)
    tile = _get(record, Linear.TILES) + thread * TILE_BYTES
    rows, panels = _get(record, Linear.ROWS), _get(record, Linear.PANELS)
    chunks = (rows + _CHUNK_ROWS - 1) // _CHUNK_ROWS
    task = fetch_add(record + 8 * Linear.TASKS)
    while task < panels * chunks:
        first = task % chunks * _CHUNK_ROWS
        _panel(
            record, task // chunks, first, min(first + _CHUNK_ROWS, rows), tile,
            literally(fmt), literally(epilogue), literally(itemsize),
        )  # fmt: skip
        task = fetch_add(record + 8 * Linear.TASKS)


@njit(nogil=True)
def _panel(record: int, panel: int, first: int, end: int, tile: int, fmt: Any, epilogue: Any, itemsize: Any) -> None:
    """One panel of columns for the rows first .. end - 1, 8 at a time. Each 8 prefetch a share of the next panel."""
    size = 4 * PANEL * _get(record, Linear.STEPS)
    right = _get(record, Linear.WEIGHT) + panel * size
    gap = _get(record, Linear.GATED) * _get(record, Linear.PANELS) * size  # bytes from a gate to its product
    ahead = _next_panel(record, panel)
    tiles = (end - first + TILE_ROWS - 1) // TILE_ROWS
    for row in range(first, end, TILE_ROWS):
        _multiply(record, row, end - row, right, tile, ahead, tiles, literally(fmt))
        if gap:
            _multiply(record, row, end - row, right + gap, tile + TILE_BYTES // 2, ahead + gap, tiles, literally(fmt))
        for r in range(row, min(row + TILE_ROWS, end)):
            _finish(record, panel, r, r - row, tile, gap, literally(fmt), literally(epilogue), literally(itemsize))
        ahead += size // tiles


@njit(nogil=True)
def _next_panel(record: int, panel: int) -> int:
    """Address of the panel that this thread reads next, perhaps of another matrix; its own where there is none."""
    size = 4 * PANEL * _get(record, Linear.STEPS)
    beyond = panel + _get(record, Linear.TEAM) - _get(record, Linear.PANELS)
    if beyond >= 0 and _get(record, Linear.NEXT_WEIGHT):
        address: int = _get(record, Linear.NEXT_WEIGHT) + beyond * 4 * PANEL * _get(record, Linear.NEXT_STEPS)
    else:
        address = _get(record, Linear.WEIGHT) + (panel if beyond >= 0 else panel + _get(record, Linear.TEAM)) * size
    return address


@njit(nogil=True)
def _multiply(record: int, row: int, rows: int, right: int, tile: int, ahead: int, tiles: int, fmt: Any) -> None:
    """One of a panel's tiles.

    The last tile computes hardly more rows than there are. With one or two tiles it computes them all: reading the
    weights takes longer than any number of rows.
    """
    stride, steps = _get(record, Linear.INPUT_STRIDE), _get(record, Linear.STEPS)
    left = _get(record, Linear.INPUT) + row * stride
    pace = 4 * PANEL // tiles
    if tiles <= _FEW_TILES:
        if rows > 4:
            multiply_tile(left, stride, right, steps, tile, ahead, pace, TILE_ROWS, _SHARES, literally(fmt))
        else:
            multiply_tile(left, stride, right, steps, tile, ahead, pace, 4, _SHARES, literally(fmt))
    elif rows > 6:
        multiply_tile(left, stride, right, steps, tile, ahead, pace, TILE_ROWS, 1, literally(fmt))
    elif rows > 4:
        multiply_tile(left, stride, right, steps, tile, ahead, pace, 6, 1, literally(fmt))
    elif rows > 2:
        multiply_tile(left, stride, right, steps, tile, ahead, pace, 4, 1, literally(fmt))
    else:
        multiply_tile(left, stride, right, steps, tile, ahead, pace, 2, 1, literally(fmt))


@njit(nogil=True)
def _finish(
    record: int, panel: int, row: int, r: int, tile: int, gap: int, fmt: Any, epilogue: Any, itemsize: Any
) -> None:
    column = 4 * PANEL * panel
    finish_row(
        tile + 4 * PANEL * r,
        tile + 4 * PANEL * (TILE_ROWS + r),
        _get(record, Linear.INPUT_SCALES) + 4 * row,
        _get(record, Linear.SCALES) + column,
        _get(record, Linear.OFFSETS) + column,
        _get(record, Linear.BIAS) + column,
        gap // _get(record, Linear.STEPS),
        _get(record, Linear.OUTPUT) + row * _get(record, Linear.OUTPUT_STRIDE) + panel * PANEL * itemsize,
        literally(fmt),
        literally(epilogue),
        literally(itemsize),
    )


@njit(nogil=True)
def _normalize(record: int, norm: Any, fmt: Any) -> None:
    thread = fetch_add(record + 8 * Normalize.THREADS)
    dim, rows, index = _get(record, Normalize.DIM), _get(record, Normalize.ROWS), _get(record, Normalize.ROW_INDEX)
    scratch = _get(record, Normalize.SCRATCH) + 4 * dim * thread
    start = fetch_add(record + 8 * Normalize.TASKS) * _ROWS_A_TASK
    while start < rows:
        for row in range(start, min(start + _ROWS_A_TASK, rows)):
            source = load_int64(index, row) if index else row
            normalize_row(
                _get(record, Normalize.INPUT) + source * _get(record, Normalize.INPUT_STRIDE),
                dim,
                _get(record, Normalize.WEIGHT),
                _get(record, Normalize.BIAS),
                _get(record, Normalize.EPSILON),
                _get(record, Normalize.OUTPUT) + row * _get(record, Normalize.OUTPUT_STRIDE),
                scratch,
                _get(record, Normalize.OUTPUT_SCALES) + 4 * row,
                literally(norm),
                literally(fmt),
            )
        start = fetch_add(record + 8 * Normalize.TASKS) * _ROWS_A_TASK


@njit(nogil=True)
def _quantize(record: int, itemsize: Any) -> None:
    rows = _get(record, Quantize.ROWS)
    start = fetch_add(record + 8 * Quantize.TASKS) * _ROWS_A_TASK
    while start < rows:
        for row in range(start, min(start + _ROWS_A_TASK, rows)):
            quantize_row(
                _get(record, Quantize.INPUT) + row * _get(record, Quantize.INPUT_STRIDE),
                _get(record, Quantize.DIM),
                _get(record, Quantize.OUTPUT) + row * _get(record, Quantize.OUTPUT_STRIDE),
                _get(record, Quantize.OUTPUT_SCALES) + 4 * row,
                literally(itemsize),
            )
        start = fetch_add(record + 8 * Quantize.TASKS) * _ROWS_A_TASK


@njit(nogil=True)
def _rotate(record: int, lanes: Any, itemsize: Any) -> None:
    rows = _get(record, Rotate.ROWS)
    row = fetch_add(record + 8 * Rotate.TASKS)
    while row < rows:
        _rotate_token(record, row, literally(lanes), literally(itemsize))
        row = fetch_add(record + 8 * Rotate.TASKS)


@njit(nogil=True)
def _rotate_token(record: int, row: int, lanes: Any, itemsize: Any) -> None:
    dim, half, heads = _get(record, Rotate.DIM), _get(record, Rotate.HALF), _get(record, Rotate.HEADS)
    epsilon = _get(record, Rotate.EPSILON)
    x = _get(record, Rotate.INPUT) + row * _get(record, Rotate.INPUT_STRIDE)
    angles = row * _get(record, Rotate.ANGLE_STRIDE)
    for head in range(heads + _get(record, Rotate.KV_HEADS)):
        place = x + head * dim * itemsize
        weight = _get(record, Rotate.QUERY_NORM) if head < heads else _get(record, Rotate.KEY_NORM)
        if weight:
            normalize_head(place, dim, weight, epsilon, literally(lanes), literally(itemsize))
        if half:
            cos, sin = _get(record, Rotate.COS) + angles, _get(record, Rotate.SIN) + angles
            rotate_head(place, half, cos, sin, literally(lanes), literally(itemsize))
