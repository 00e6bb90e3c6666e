"""The CPU kernel that attends a step's queries over the paged KV cache, in the blocks where keys and values lie.

Pages of one KV head are scattered over blocks. Scattered reads reach a third of the memory's bandwidth. A decoding
sequence is therefore attended block by block, all heads at once: the pages of a block lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import literally, njit

from .attention_record import AttentionField, head_page, key_scales
from .records import get
from .vector_ops import (
    add_weighted_rows,
    cap_row,
    clear_row,
    divide_row,
    dot_rows,
    fetch_add,
    load_int32,
    multiply_row,
    prefetch,
    scale_row,
    softmax_row,
    start_state,
    start_state_with,
)

AHEAD = 16
"""How many tokens before its use a page is asked for, of a tile with one KV head."""
BEGINNING = 512
"""Bytes of the next block's pages that are asked for: from there on the processor sees where it goes."""
STRETCH = 256
"""Context tokens whose scores are held at once."""
TILE_FIELDS = 5
"""int32s of a tile: its sequence, its first row of the batch, how many rows, its first KV head, how many KV heads."""


def scratch_bytes(max_rows: int, head_dim: int) -> int:
    """What one thread needs for a tile, in float32: scaled queries, outputs, scores and softmax states."""
    return 4 * max_rows * (2 * head_dim + STRETCH + 2)


@njit(inline="always")
def _attend(record: int, lanes: Any, itemsize: Any, stored: Any) -> None:
    thread = fetch_add(record + 8 * AttentionField.THREAD_COUNTER)
    scratch = get(record, AttentionField.SCRATCH) + thread * get(record, AttentionField.SCRATCH_STRIDE)
    tiles = get(record, AttentionField.NUM_TILES)
    tile = fetch_add(record + 8 * AttentionField.ATTEND_COUNTER)
    while tile < tiles:
        place = get(record, AttentionField.TILES) + tile * 4 * TILE_FIELDS
        _attend_tile(record, place, scratch, lanes, itemsize, stored)
        tile = fetch_add(record + 8 * AttentionField.ATTEND_COUNTER)


@njit(inline="always")
def _attend_tile(record: int, tile: int, scratch: int, lanes: Any, itemsize: Any, stored: Any) -> None:
    """Every row's softmax over its context, stretch by stretch; a stretch is done for all heads before the next, so
    that memory is read in the order of the blocks.
    """
    sequence, first_row, num_rows = load_int32(tile, 0), load_int32(tile, 1), load_int32(tile, 2)
    first_head, heads = load_int32(tile, 3), load_int32(tile, 4)
    dim, max_rows = get(record, AttentionField.HEAD_DIM), get(record, AttentionField.MAX_ROWS)
    group = get(record, AttentionField.NUM_HEADS) // get(record, AttentionField.NUM_KV_HEADS)
    rows = num_rows * group
    q, out = scratch, scratch + 4 * max_rows * dim
    states = out + 4 * max_rows * dim
    scores = states + 8 * max_rows
    rows_end = load_int32(get(record, AttentionField.QUERY_STARTS), sequence + 1)
    position = load_int32(get(record, AttentionField.CONTEXT_LENS), sequence) - (rows_end - first_row)
    table = get(record, AttentionField.BLOCK_TABLES) + sequence * get(record, AttentionField.TABLE_STRIDE)

    _start_heads(record, first_row, rows, first_head, heads, q, states, lanes, itemsize)
    clear_row(out, heads * rows * dim, lanes)

    stop = position + num_rows
    begin = max(0, position + 1 - get(record, AttentionField.WINDOW)) // lanes * lanes
    stretch = STRETCH if heads == 1 else min(STRETCH, get(record, AttentionField.BLOCK_SIZE))
    for start in range(begin, stop, stretch):
        end = min(start + stretch, stop)
        for index in range(heads):
            first = index * rows
            if heads > 1 and end < stop:
                block = load_int32(table, end // get(record, AttentionField.BLOCK_SIZE))
                prefetch(head_page(record, block, first_head + index), BEGINNING)
            _attend_stretch(
                record,
                q + 4 * first * dim,
                rows,
                position,
                table,
                first_head + index,
                start,
                end,
                scores,
                states + 8 * first,
                out + 4 * first * dim,
                lanes,
                stored,
            )

    _finish_heads(record, first_row, rows, first_head, heads, out, states, lanes, itemsize)


@njit(inline="always")
def _attend_stretch(
    record: int,
    q: int,
    rows: int,
    position: int,
    table: int,
    head: int,
    start: int,
    end: int,
    scores: int,
    states: int,
    out: int,
    lanes: Any,
    stored: Any,
) -> None:
    """Bring the rows of one KV head, the first at `position`, up to date with the tokens start .. end - 1."""
    dim, window = get(record, AttentionField.HEAD_DIM), get(record, AttentionField.WINDOW)
    group = get(record, AttentionField.NUM_HEADS) // get(record, AttentionField.NUM_KV_HEADS)
    count = (end - start + lanes - 1) // lanes * lanes
    _score(record, q, rows, table, head, start, end, scores, lanes, stored)
    for r in range(rows):
        row = scores + 4 * r * STRETCH
        seen = position + r // group + 1
        low, high = max(0, seen - window - start), min(seen, end) - start
        if high > low:
            if get(record, AttentionField.SOFTCAP) != 0:
                cap_row(row, count, record + 8 * AttentionField.SOFTCAP, lanes)
            softmax_row(row, count, low, high, states + 8 * r, out + 4 * r * dim, dim, lanes)
        else:
            clear_row(row, count, lanes)
    _weigh(record, scores, rows, table, head, start, end, out, lanes, stored)


@njit(inline="always")
def _start_heads(
    record: int, first_row: int, rows: int, first_head: int, heads: int, q: int, states: int, lanes: Any, itemsize: Any
) -> None:
    """Scale the queries of some KV heads, and begin their softmax."""
    dim, scale = get(record, AttentionField.HEAD_DIM), record + 8 * AttentionField.SCALE
    group = get(record, AttentionField.NUM_HEADS) // get(record, AttentionField.NUM_KV_HEADS)
    for index in range(heads * rows):
        r, head = index % rows, first_head + index // rows
        query_head = head * group + r % group
        row = get(record, AttentionField.QUERY) + (first_row + r // group) * get(record, AttentionField.QUERY_STRIDE)
        place = row + query_head * dim * itemsize
        scale_row(place, q + 4 * index * dim, dim, scale, lanes, itemsize)
        start_state(states + 8 * index)
        if get(record, AttentionField.SINKS) != 0:
            start_state_with(states + 8 * index, get(record, AttentionField.SINKS), query_head)


@njit(inline="always")
def _finish_heads(
    record: int,
    first_row: int,
    rows: int,
    first_head: int,
    heads: int,
    out: int,
    states: int,
    lanes: Any,
    itemsize: Any,
) -> None:
    """Write what the rows of some KV heads have accumulated, divided by the sums of their weights."""
    dim, query_heads = get(record, AttentionField.HEAD_DIM), get(record, AttentionField.NUM_HEADS)
    group = query_heads // get(record, AttentionField.NUM_KV_HEADS)
    for index in range(heads * rows):
        r, head = index % rows, first_head + index // rows
        row = (first_row + r // group) * query_heads + head * group + r % group
        place = get(record, AttentionField.OUTPUT) + row * dim * itemsize
        divide_row(out + 4 * index * dim, place, dim, states + 8 * index + 4, lanes, itemsize)


@njit(error_model="numpy", no_cpython_wrapper=True)
def _score(
    record: int, q: int, rows: int, table: int, head: int, start: int, end: int, scores: int, lanes: Any, stored: Any
) -> None:
    """Scores of every row against the tokens start .. end - 1, group by group."""
    dim, block_size = get(record, AttentionField.HEAD_DIM), get(record, AttentionField.BLOCK_SIZE)
    for token in range(start, end, lanes):
        page = head_page(record, load_int32(table, token // block_size), head)
        keys = page + token % block_size * dim * stored
        if end - start > block_size:
            if token + AHEAD < end:
                prefetch(
                    head_page(record, load_int32(table, (token + AHEAD) // block_size), head), lanes * dim * stored
                )
            prefetch(page + (block_size + token % block_size) * dim * stored, lanes * dim * stored)
        place = scores + 4 * (token - start)
        r = 0
        while r + 4 <= rows:
            _score_rows(q, r, dim, keys, place, 4, literally(lanes), literally(stored))
            r += 4
        if rows - r == 3:
            _score_rows(q, r, dim, keys, place, 3, literally(lanes), literally(stored))
        elif rows - r == 2:
            _score_rows(q, r, dim, keys, place, 2, literally(lanes), literally(stored))
        elif rows - r == 1:
            _score_rows(q, r, dim, keys, place, 1, literally(lanes), literally(stored))
        if stored == 1:
            scales = key_scales(record, page) + 4 * (token % block_size)
            for r in range(rows):
                multiply_row(place + 4 * r * STRETCH, scales, literally(lanes))


@njit(inline="always")
def _score_rows(q: int, r: int, dim: int, keys: int, scores: int, count: Any, lanes: Any, stored: Any) -> None:
    """Scores of rows r .. r + count - 1 against one group of tokens."""
    place = scores + 4 * r * STRETCH
    dot_rows(q + 4 * r * dim, dim, keys, dim, place, STRETCH, count, lanes, stored)


@njit(error_model="numpy", no_cpython_wrapper=True)
def _weigh(
    record: int,
    scores: int,
    rows: int,
    table: int,
    head: int,
    start: int,
    end: int,
    out: int,
    lanes: Any,
    stored: Any,
) -> None:
    """Add the weighted values of the tokens start .. end - 1 to every row's output, group by group."""
    dim, block_size = get(record, AttentionField.HEAD_DIM), get(record, AttentionField.BLOCK_SIZE)
    for token in range(start, end, lanes):
        page = head_page(record, load_int32(table, token // block_size), head)
        values = page + (block_size + token % block_size) * dim * stored
        count = min(lanes, end - token)
        weights = scores + 4 * (token - start)
        if stored == 1:
            scale = key_scales(record, page) + 4 * (block_size + token % block_size)
            for r in range(rows):
                multiply_row(weights + 4 * r * STRETCH, scale, literally(lanes))
        r = 0
        while r + 4 <= rows:
            _weigh_rows(weights, r, values, dim, count, out, 4, literally(lanes), literally(stored))
            r += 4
        if rows - r == 3:
            _weigh_rows(weights, r, values, dim, count, out, 3, literally(lanes), literally(stored))
        elif rows - r == 2:
            _weigh_rows(weights, r, values, dim, count, out, 2, literally(lanes), literally(stored))
        elif rows - r == 1:
            _weigh_rows(weights, r, values, dim, count, out, 1, literally(lanes), literally(stored))


@njit(inline="always")
def _weigh_rows(
    weights: int, r: int, values: int, dim: int, tokens: int, out: int, count: Any, lanes: Any, stored: Any
) -> None:
    """Add the weighted values of one group of tokens to the rows r .. r + count - 1."""
    at, to = weights + 4 * r * STRETCH, out + 4 * r * dim
    d = 0
    while d + 4 * lanes <= dim:
        _weigh_columns(at, values, d, dim, tokens, to, count, 4, lanes, stored)
        d += 4 * lanes
    while d < dim:
        _weigh_columns(at, values, d, dim, tokens, to, count, 1, lanes, stored)
        d += lanes


@njit(inline="always")
def _weigh_columns(
    at: int, values: int, d: int, dim: int, tokens: int, to: int, count: Any, width: Any, lanes: Any, stored: Any
) -> None:
    """The sums of `width` vectors from column d on."""
    v, out = values + d * stored, to + 4 * d
    add_weighted_rows(at, STRETCH, v, dim, tokens, out, count, width, lanes, stored)


def attend_kernel(lanes: int, itemsize: int, stored: int) -> Callable[[int], None]:
    """The kernel that attends the queries of a batch."""

    def attend(record: int) -> None:
        _attend(record, lanes, itemsize, stored)

    return attend
