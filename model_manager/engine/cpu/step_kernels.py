"""The kernels of a compiled step: each takes the address of one record, and every thread of the team runs it.

Knows rows, panels and addresses; not which layer a record belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import literally, njit

from .matrix_ops import PANEL, Format, Unit, finish_row
from .product_ops import multiply_panels, multiply_tile
from .records import Linear, Normalize, Quantize, Rotate, Run, get
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
from .tile_ops import BLOCK_ROWS, configure_tiles, multiply_block, release_tiles
from .vector_ops import fetch_add, load_int64

SPARE_ROWS = BLOCK_ROWS
"""Rows that buffers have to spare, which are read but not used: as many as a product computes at once."""
SUMS_BYTES = 2 * 4 * PANEL * BLOCK_ROWS
"""A thread's sums: a half for a product, the other for the second panel of each pair, its gate's product for one."""
_VECTOR_ROWS = 8
"""Rows that vector instructions compute at once."""
_FEW_ROWS = 4
"""To compute so few rows takes no longer than to read the weights, and several panels are read at once."""
_TILE_BYTES = 4 * PANEL * _FEW_ROWS
_CHUNK_ROWS = 128
_SHARES = 3
"""Cache lines of a panel that one step reads."""
_FEW_PARTS = 2
"""With so few parts, each step must prefetch more than one line to fetch a whole panel."""
_ROWS_A_TASK = 4
_SPINS = 256
"""Reads of a counter, with a pause after each, before the thread yields its core."""
_OFFERS = 64
"""Yields after which a thread sleeps between reads: others use the core that it waits for."""
_NAP = 50
"""Microseconds."""


def run_all() -> Callable[[int], None]:
    """A kernel for Run records: every kernel of a step, one after the other, all threads together."""

    def kernel(record: int) -> None:
        _run(record)

    return kernel


def linear(fmt: int, epilogue: int, itemsize: int, unit: int) -> Callable[[int], None]:
    """A kernel for Linear records; `itemsize` is the output's, in bytes, and `unit` a `Unit`."""

    def kernel(record: int) -> None:
        _linear(record, fmt, epilogue, itemsize, unit)

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


@njit(inline="always")
def _run(record: int) -> None:
    calls, counts = get(record, Run.CALLS), get(record, Run.COUNT_THREADS)
    threads = call_count(counts) if counts else 1
    for index in range(get(record, Run.COUNT)):
        call_kernel(load_int64(calls, 2 * index), load_int64(calls, 2 * index + 1))
        arrive(record + 8 * Run.ARRIVED)
        _wait(record, (index + 1) * threads)


@njit(inline="always")
def _wait(record: int, arrivals: int) -> None:
    """Wait until so many threads have arrived."""
    spins = 0
    while look(record + 8 * Run.ARRIVED) < arrivals:
        pause()
        spins += 1
        if spins > _SPINS * _OFFERS:
            call_kernel(get(record, Run.SLEEP), _NAP)
        elif spins % _SPINS == 0:
            call_kernel(get(record, Run.YIELD), 0)


@njit(inline="always")
def _linear(record: int, fmt: Any, epilogue: Any, itemsize: Any, unit: Any) -> None:
    thread = fetch_add(record + 8 * Linear.THREADS)
    sums = get(record, Linear.SUMS) + thread * SUMS_BYTES
    rows, panels = get(record, Linear.ROWS), get(record, Linear.PANELS)
    if rows <= _FEW_ROWS and not _suits_tiles(rows, fmt, unit):
        _few_rows(record, rows, sums, fmt, epilogue, itemsize, unit)
        return
    chunks = (rows + _CHUNK_ROWS - 1) // _CHUNK_ROWS
    configure_tiles(get(record, Linear.TILE_SHAPES), unit)
    task = fetch_add(record + 8 * Linear.TASKS)
    while task < panels * chunks:
        first = task % chunks * _CHUNK_ROWS
        _panel(
            record, task // chunks, first, min(first + _CHUNK_ROWS, rows), sums,
            fmt, epilogue, itemsize, unit,
        )  # fmt: skip
        task = fetch_add(record + 8 * Linear.TASKS)
    release_tiles(unit)


@njit(inline="always")
def _few_rows(record: int, rows: int, sums: int, fmt: Any, epilogue: Any, itemsize: Any, unit: Any) -> None:
    """Draws groups of panels, as many for each thread, then the last panels one by one.

    A group has as many panels as there are registers for their sums. With gates, half of them are gates.
    """
    panels, team, gated = get(record, Linear.PANELS), get(record, Linear.TEAM), get(record, Linear.GATED)
    at_once = (4 if rows == 1 else 2) >> gated
    groups = panels // (at_once * team) * team
    tasks = panels - groups * (at_once - 1)
    gap = gated * panels * 4 * PANEL * get(record, Linear.STEPS)
    task = fetch_add(record + 8 * Linear.TASKS)
    while task < tasks:
        first, count = _group(task, groups, at_once), at_once if task < groups else 1
        ahead = _next_group(record, task, tasks, groups, at_once)
        _multiply_group(record, rows, first, count, ahead, sums, fmt, unit)
        pairs = _pairs(count, gated)
        for place in range(count):
            tile = sums + place % pairs * _TILE_BYTES + place // pairs * (SUMS_BYTES // 2)
            _finish(record, first + place, 0, rows, tile, gap, fmt, epilogue, itemsize, unit)
        task = fetch_add(record + 8 * Linear.TASKS)


@njit(error_model="numpy", no_cpython_wrapper=True)
def _pairs(count: int, gated: int) -> int:
    """In how many pairs so many panels are computed: with their gates, with each other, or a single one with itself."""
    return count if gated else (count + 1) // 2


@njit(error_model="numpy", no_cpython_wrapper=True)
def _group(task: int, groups: int, at_once: int) -> int:
    """The first panel of a task: `groups` have `at_once` panels, the others one."""
    return task * at_once if task < groups else task + groups * (at_once - 1)


@njit(error_model="numpy", no_cpython_wrapper=True)
def _next_group(record: int, task: int, tasks: int, groups: int, at_once: int) -> int:
    """Address of the panels that this thread reads after a task, perhaps of another matrix; the task's own where there
    are none.
    """
    later = task + get(record, Linear.TEAM)
    if later >= tasks and get(record, Linear.NEXT_WEIGHT):
        panel = (later - tasks) * at_once
        weight, steps = get(record, Linear.NEXT_WEIGHT), get(record, Linear.NEXT_STEPS)
    else:
        panel = _group(later if later < tasks else task, groups, at_once)
        weight, steps = get(record, Linear.WEIGHT), get(record, Linear.STEPS)
    address: int = weight + panel * 4 * PANEL * steps
    return address


@njit(error_model="numpy", no_cpython_wrapper=True)
def _multiply_group(record: int, rows: int, first: int, count: int, ahead: int, sums: int, fmt: Any, unit: Any) -> None:
    """The sums of `count` panels: of one row and up to two pairs of panels, or of up to 4 rows and one pair."""
    panels, gated, steps = get(record, Linear.PANELS), get(record, Linear.GATED), get(record, Linear.STEPS)
    left, stride = get(record, Linear.INPUT), get(record, Linear.INPUT_STRIDE)
    size, far_tiles = 4 * PANEL * steps, SUMS_BYTES // 2
    right, far = get(record, Linear.WEIGHT) + first * size, (panels if gated else count // 2) * size
    if rows > 1:
        multiply_panels(
            left, stride, right, size, far, steps, sums, _TILE_BYTES, far_tiles, ahead,
            _FEW_ROWS, 1, literally(fmt), literally(unit),
        )  # fmt: skip
    elif _pairs(count, gated) > 1:
        multiply_panels(
            left, stride, right, size, far, steps, sums, _TILE_BYTES, far_tiles, ahead,
            1, 2, literally(fmt), literally(unit),
        )  # fmt: skip
    else:
        multiply_panels(
            left, stride, right, size, far, steps, sums, _TILE_BYTES, far_tiles, ahead,
            1, 1, literally(fmt), literally(unit),
        )  # fmt: skip


@njit(inline="always")
def _panel(
    record: int, panel: int, first: int, end: int, sums: int, fmt: Any, epilogue: Any, itemsize: Any, unit: Any
) -> None:
    """One panel of columns for the rows first .. end - 1, some at a time, which prefetch a share of the next panel."""
    size = 4 * PANEL * get(record, Linear.STEPS)
    right = get(record, Linear.WEIGHT) + panel * size
    gap = get(record, Linear.GATED) * get(record, Linear.PANELS) * size  # bytes from a gate to its product
    ahead = _next_group(record, panel, get(record, Linear.PANELS), 0, 1)
    at_once = BLOCK_ROWS if _suits_tiles(end - first, fmt, unit) else _VECTOR_ROWS
    parts = (end - first + at_once - 1) // at_once
    for row in range(first, end, at_once):
        left = end - row
        _multiply(record, row, left, at_once, right, sums, ahead, parts, fmt, unit)
        if gap:
            place, pair = right + gap, sums + SUMS_BYTES // 2
            _multiply(record, row, left, at_once, place, pair, ahead + gap, parts, fmt, unit)
        _finish(record, panel, row, min(row + at_once, end), sums, gap, fmt, epilogue, itemsize, unit)
        ahead += size // parts


@njit(inline="always")
def _suits_tiles(rows: int, fmt: Any, unit: Any) -> bool:
    """Whether the matrix unit computes these rows.

    bfloat16 always, as its sums differ in the last bits, and a row's must not depend on how many others there are. int8
    is exact either way, and few rows are faster by vector instructions.
    """
    return bool(unit == Unit.TILES and (fmt != Format.INT8 or rows > _VECTOR_ROWS))


@njit(inline="always")
def _multiply(
    record: int, row: int, rows: int, at_once: int, right: int, sums: int, ahead: int, parts: int, fmt: Any, unit: Any
) -> None:
    """The sums of the next rows of a panel, `at_once` of the `rows` that are left, in one of its `parts`."""
    stride, steps = get(record, Linear.INPUT_STRIDE), get(record, Linear.STEPS)
    left = get(record, Linear.INPUT) + row * stride
    pace = 4 * PANEL // parts
    if at_once == BLOCK_ROWS:
        _multiply_tiles(left, stride, right, steps, sums, ahead, pace, rows, fmt, unit)
    else:
        _multiply_vectors(left, stride, right, steps, sums, ahead, pace, rows, fmt, unit)


@njit(error_model="numpy", no_cpython_wrapper=True)
def _multiply_tiles(
    left: int, stride: int, right: int, steps: int, sums: int, ahead: int, pace: int, rows: int, fmt: Any, unit: Any
) -> None:
    """One or two tiles of rows; the fewer the parts of a panel, the more cache lines each of them prefetches.

    Kernels of another unit never come here.
    """
    few = rows <= BLOCK_ROWS // 2
    if pace == 4 * PANEL:
        if few:
            multiply_block(left, stride, right, steps, sums, ahead, pace, 1, 1, literally(fmt), literally(unit))
        else:
            multiply_block(left, stride, right, steps, sums, ahead, pace, 2, 1, literally(fmt), literally(unit))
    elif few:
        multiply_block(left, stride, right, steps, sums, ahead, pace, 1, 2, literally(fmt), literally(unit))
    elif pace == 2 * PANEL:
        multiply_block(left, stride, right, steps, sums, ahead, pace, 2, 2, literally(fmt), literally(unit))
    else:  # a third is asked for as a quarter
        multiply_block(left, stride, right, steps, sums, ahead, pace, 2, 4, literally(fmt), literally(unit))


@njit(error_model="numpy", no_cpython_wrapper=True)
def _multiply_vectors(
    left: int, stride: int, right: int, steps: int, sums: int, ahead: int, pace: int, rows: int, fmt: Any, unit: Any
) -> None:
    """Up to 8 rows: with one or two parts it computes 4 or 8, with more 2, 4 or 8."""
    if pace >= 4 * PANEL // _FEW_PARTS:
        if rows > 4:
            multiply_tile(
                left, stride, right, steps, sums, ahead, pace, _VECTOR_ROWS, _SHARES, literally(fmt), literally(unit)
            )
        else:
            multiply_tile(
                left, stride, right, steps, sums, ahead, pace, _FEW_ROWS, _SHARES, literally(fmt), literally(unit)
            )
    elif rows > 4:
        multiply_tile(left, stride, right, steps, sums, ahead, pace, _VECTOR_ROWS, 1, literally(fmt), literally(unit))
    elif rows > 2:
        multiply_tile(left, stride, right, steps, sums, ahead, pace, 4, 1, literally(fmt), literally(unit))
    else:
        multiply_tile(left, stride, right, steps, sums, ahead, pace, 2, 1, literally(fmt), literally(unit))


@njit(error_model="numpy", no_cpython_wrapper=True)
def _finish(
    record: int,
    panel: int,
    first: int,
    end: int,
    sums: int,
    gap: int,
    fmt: Any,
    epilogue: Any,
    itemsize: Any,
    unit: Any,
) -> None:
    """What becomes of the sums of the rows first .. end - 1 of a panel."""
    column = 4 * PANEL * panel
    for row in range(first, end):
        tile = sums + 4 * PANEL * (row - first)
        finish_row(
            tile,
            tile + SUMS_BYTES // 2,
            get(record, Linear.INPUT_SCALES) + 4 * row,
            get(record, Linear.SCALES) + column,
            get(record, Linear.OFFSETS) + column,
            get(record, Linear.BIAS) + column,
            gap // get(record, Linear.STEPS),
            get(record, Linear.OUTPUT) + row * get(record, Linear.OUTPUT_STRIDE) + panel * PANEL * itemsize,
            literally(fmt),
            literally(epilogue),
            literally(itemsize),
            literally(unit),
        )


@njit(inline="always")
def _normalize(record: int, norm: Any, fmt: Any) -> None:
    thread = fetch_add(record + 8 * Normalize.THREADS)
    dim, rows, index = get(record, Normalize.DIM), get(record, Normalize.ROWS), get(record, Normalize.ROW_INDEX)
    scratch = get(record, Normalize.SCRATCH) + 4 * dim * thread
    start = fetch_add(record + 8 * Normalize.TASKS) * _ROWS_A_TASK
    while start < rows:
        for row in range(start, min(start + _ROWS_A_TASK, rows)):
            source = load_int64(index, row) if index else row
            normalize_row(
                get(record, Normalize.INPUT) + source * get(record, Normalize.INPUT_STRIDE),
                dim,
                get(record, Normalize.WEIGHT),
                get(record, Normalize.BIAS),
                get(record, Normalize.EPSILON),
                get(record, Normalize.OUTPUT) + row * get(record, Normalize.OUTPUT_STRIDE),
                scratch,
                get(record, Normalize.OUTPUT_SCALES) + 4 * row,
                norm,
                fmt,
            )
        start = fetch_add(record + 8 * Normalize.TASKS) * _ROWS_A_TASK


@njit(inline="always")
def _quantize(record: int, itemsize: Any) -> None:
    rows = get(record, Quantize.ROWS)
    start = fetch_add(record + 8 * Quantize.TASKS) * _ROWS_A_TASK
    while start < rows:
        for row in range(start, min(start + _ROWS_A_TASK, rows)):
            quantize_row(
                get(record, Quantize.INPUT) + row * get(record, Quantize.INPUT_STRIDE),
                get(record, Quantize.DIM),
                get(record, Quantize.OUTPUT) + row * get(record, Quantize.OUTPUT_STRIDE),
                get(record, Quantize.OUTPUT_SCALES) + 4 * row,
                itemsize,
            )
        start = fetch_add(record + 8 * Quantize.TASKS) * _ROWS_A_TASK


@njit(inline="always")
def _rotate(record: int, lanes: Any, itemsize: Any) -> None:
    rows = get(record, Rotate.ROWS)
    row = fetch_add(record + 8 * Rotate.TASKS)
    while row < rows:
        _rotate_token(record, row, lanes, itemsize)
        row = fetch_add(record + 8 * Rotate.TASKS)


@njit(inline="always")
def _rotate_token(record: int, row: int, lanes: Any, itemsize: Any) -> None:
    dim, half, heads = get(record, Rotate.DIM), get(record, Rotate.HALF), get(record, Rotate.HEADS)
    epsilon = get(record, Rotate.EPSILON)
    x = get(record, Rotate.INPUT) + row * get(record, Rotate.INPUT_STRIDE)
    angles = row * get(record, Rotate.ANGLE_STRIDE)
    for head in range(heads + get(record, Rotate.KV_HEADS)):
        place = x + head * dim * itemsize
        weight = get(record, Rotate.QUERY_NORM) if head < heads else get(record, Rotate.KEY_NORM)
        if weight:
            normalize_head(place, dim, weight, epsilon, lanes, itemsize)
        if half:
            cos, sin = get(record, Rotate.COS) + angles, get(record, Rotate.SIN) + angles
            rotate_head(place, half, cos, sin, lanes, itemsize)
