"""The two CPU kernels of the paged KV cache, compiled by Numba: store a step's keys and values, attend them.

A block holds a page for each KV head: its keys, then its values. Keys lie in groups of `lanes` tokens, [group, dim,
lanes], so that one vector multiplies and adds the scores of a whole group; values lie [token, dim]. Where they are
rounded to int8, a float32 for each token's key follows, then one for each value: what a step of it is worth. As these
multiply scores and weights, they cost one product a token and not one an element.

`itemsize` is the bytes of an element of the batch, `stored` of one in the cache.

A kernel is an OpenMP region's body: every thread of the team runs it and draws tasks from a common counter. Its one
argument is the address of an int64 record (`Field`); it allocates nothing and knows no Python.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from numba import literally, njit

from model_manager.engine.vector_ops import (
    add_weighted_rows,
    cap_row,
    clear_row,
    divide_row,
    dot_rows,
    fetch_add,
    load_int32,
    load_int64,
    multiply_row,
    prefetch,
    round_row,
    scale_row,
    softmax_row,
    spread,
    start_state,
    start_state_with,
)

AHEAD = 64
"""How many tokens before its use a page is asked for."""
STRETCH = 256
"""Context tokens whose scores are held at once."""
TILE_FIELDS = 3
"""int32s of a tile: its sequence, its first row of the batch, how many rows."""
STORE_TOKENS = 32
"""Tokens of one KV head that a storing task takes."""


class Field(enum.IntEnum):
    """What lies where in the record; addresses and strides of the batch's rows are in bytes.

    SCALE and SOFTCAP are float32, SINKS the address of one float32 a head. Scores and sinks are in base 2: what
    softmax takes the power of 2 of. SOFTCAP and SINKS are 0 where there are none.
    """

    QUERY = 0
    QUERY_STRIDE = 1
    KEY = 2
    KEY_STRIDE = 3
    VALUE = 4
    VALUE_STRIDE = 5
    OUTPUT = 6
    CACHE = 7
    SLOTS = 8
    NUM_TOKENS = 9
    TILES = 10
    NUM_TILES = 11
    QUERY_STARTS = 12
    CONTEXT_LENS = 13
    BLOCK_TABLES = 14
    TABLE_STRIDE = 15
    WINDOW = 16
    SCALE = 17
    NUM_HEADS = 18
    NUM_KV_HEADS = 19
    HEAD_DIM = 20
    BLOCK_SIZE = 21
    SCRATCH = 22
    SCRATCH_STRIDE = 23
    MAX_ROWS = 24
    SOFTCAP = 25
    SINKS = 26
    PAGE_BYTES = 27
    STORE_COUNTER = 28
    ATTEND_COUNTER = 29
    THREAD_COUNTER = 30


def scratch_bytes(max_rows: int, head_dim: int) -> int:
    """What one thread needs for a tile, in float32: scaled queries, outputs, scores and softmax states."""
    return 4 * max_rows * (2 * head_dim + STRETCH + 2)


@njit(nogil=True)
def _get(record: int, field: Any) -> Any:
    return load_int64(record, field)


@njit(nogil=True)
def _head_page(record: int, block: int, head: int) -> Any:
    """Address of a head's page in a block."""
    page = block * _get(record, Field.NUM_KV_HEADS) + head
    return _get(record, Field.CACHE) + page * _get(record, Field.PAGE_BYTES)


@njit(nogil=True)
def _scales(record: int, page: int) -> Any:
    """Address of the float32s of a page's keys in int8; those of its values follow them."""
    return page + 2 * _get(record, Field.BLOCK_SIZE) * _get(record, Field.HEAD_DIM)


@njit(nogil=True)
def _store(record: int, lanes: Any, itemsize: Any, stored: Any) -> None:
    heads, tokens = _get(record, Field.NUM_KV_HEADS), _get(record, Field.NUM_TOKENS)
    tasks = (tokens + STORE_TOKENS - 1) // STORE_TOKENS * heads
    task = fetch_add(record + 8 * Field.STORE_COUNTER)
    while task < tasks:
        first = task // heads * STORE_TOKENS
        for token in range(first, min(first + STORE_TOKENS, tokens)):
            _store_token(record, token, task % heads, literally(lanes), literally(itemsize), literally(stored))
        task = fetch_add(record + 8 * Field.STORE_COUNTER)


@njit(nogil=True)
def _store_token(record: int, token: int, head: int, lanes: Any, itemsize: Any, stored: Any) -> None:
    dim, block_size = _get(record, Field.HEAD_DIM), _get(record, Field.BLOCK_SIZE)
    slot = load_int64(_get(record, Field.SLOTS), token)
    page = _head_page(record, slot // block_size, head)
    offset = slot % block_size
    lane = offset % lanes
    key = _get(record, Field.KEY) + token * _get(record, Field.KEY_STRIDE) + head * dim * itemsize
    value = _get(record, Field.VALUE) + token * _get(record, Field.VALUE_STRIDE) + head * dim * itemsize
    key_place = page + ((offset - lane) * dim + lane) * stored
    value_place = page + (block_size + offset) * dim * stored
    if stored == 1:
        scale = _scales(record, page) + 4 * offset
        round_row(key, key_place, dim, lanes, scale, literally(lanes), literally(itemsize))
        round_row(value, value_place, dim, 1, scale + 4 * block_size, literally(lanes), literally(itemsize))
    else:
        spread(key, key_place, dim, lanes, literally(itemsize))
        spread(value, value_place, dim, 1, literally(itemsize))


@njit(nogil=True)
def _attend(record: int, lanes: Any, itemsize: Any, stored: Any) -> None:
    thread = fetch_add(record + 8 * Field.THREAD_COUNTER)
    scratch = _get(record, Field.SCRATCH) + thread * _get(record, Field.SCRATCH_STRIDE)
    heads = _get(record, Field.NUM_KV_HEADS)
    tasks = _get(record, Field.NUM_TILES) * heads
    task = fetch_add(record + 8 * Field.ATTEND_COUNTER)
    while task < tasks:
        tile = _get(record, Field.TILES) + task // heads * 4 * TILE_FIELDS
        _attend_tile(record, tile, task % heads, scratch, literally(lanes), literally(itemsize), literally(stored))
        task = fetch_add(record + 8 * Field.ATTEND_COUNTER)


@njit(nogil=True)
def _attend_tile(record: int, tile: int, head: int, scratch: int, lanes: Any, itemsize: Any, stored: Any) -> None:
    """One tile and KV head: every row's softmax over its context, stretch by stretch."""
    sequence, first_row, num_rows = load_int32(tile, 0), load_int32(tile, 1), load_int32(tile, 2)
    dim, max_rows = _get(record, Field.HEAD_DIM), _get(record, Field.MAX_ROWS)
    group = _get(record, Field.NUM_HEADS) // _get(record, Field.NUM_KV_HEADS)
    rows = num_rows * group
    q, out = scratch, scratch + 4 * max_rows * dim
    scores = out + 4 * max_rows * dim
    states = scores + 4 * max_rows * STRETCH
    rows_end = load_int32(_get(record, Field.QUERY_STARTS), sequence + 1)
    position = load_int32(_get(record, Field.CONTEXT_LENS), sequence) - (rows_end - first_row)
    table = _get(record, Field.BLOCK_TABLES) + sequence * _get(record, Field.TABLE_STRIDE)
    window = _get(record, Field.WINDOW)

    for r in range(rows):
        place = (first_row + r // group) * _get(record, Field.QUERY_STRIDE) + (
            head * group + r % group
        ) * dim * itemsize
        scale = record + 8 * Field.SCALE
        scale_row(_get(record, Field.QUERY) + place, q + 4 * r * dim, dim, scale, literally(lanes), literally(itemsize))
        start_state(states + 8 * r)
        if _get(record, Field.SINKS) != 0:
            start_state_with(states + 8 * r, _get(record, Field.SINKS), head * group + r % group)
    clear_row(out, rows * dim, literally(lanes))

    stop = position + num_rows
    begin = max(0, position + 1 - window) // lanes * lanes
    for start in range(begin, stop, STRETCH):
        end = min(start + STRETCH, stop)
        _score(record, q, rows, table, head, start, end, scores, literally(lanes), literally(stored))
        count = (end - start + lanes - 1) // lanes * lanes
        for r in range(rows):
            seen = position + r // group + 1
            low, high = max(0, seen - window - start), min(seen, end) - start
            if high > low:
                if _get(record, Field.SOFTCAP) != 0:
                    cap_row(scores + 4 * r * STRETCH, count, record + 8 * Field.SOFTCAP, literally(lanes))
                softmax_row(
                    scores + 4 * r * STRETCH, count, low, high, states + 8 * r, out + 4 * r * dim, dim, literally(lanes)
                )
            else:
                clear_row(scores + 4 * r * STRETCH, count, literally(lanes))
        _weigh(record, scores, rows, table, head, start, end, out, literally(lanes), literally(stored))

    output = _get(record, Field.OUTPUT)
    for r in range(rows):
        place = ((first_row + r // group) * _get(record, Field.NUM_HEADS) + head * group + r % group) * dim * itemsize
        divide_row(out + 4 * r * dim, output + place, dim, states + 8 * r + 4, literally(lanes), literally(itemsize))


@njit(nogil=True)
def _score(
    record: int, q: int, rows: int, table: int, head: int, start: int, end: int, scores: int, lanes: Any, stored: Any
) -> None:
    """Scores of every row against the tokens start .. end - 1, group by group."""
    dim, block_size = _get(record, Field.HEAD_DIM), _get(record, Field.BLOCK_SIZE)
    for token in range(start, end, lanes):
        page = _head_page(record, load_int32(table, token // block_size), head)
        keys = page + token % block_size * dim * stored
        if token + AHEAD < end:
            ahead = _head_page(record, load_int32(table, (token + AHEAD) // block_size), head)
            prefetch(ahead + (token + AHEAD) % block_size * dim * stored, lanes * dim * stored)
            if stored == 1:
                prefetch(_scales(record, ahead), 8 * block_size)
        prefetch(page + (block_size + token % block_size) * dim * stored, lanes * dim * stored)
        place = scores + 4 * (token - start)
        r = 0
        while r + 4 <= rows:
            at = place + 4 * r * STRETCH
            dot_rows(q + 4 * r * dim, dim, keys, dim, at, STRETCH, 4, literally(lanes), literally(stored))
            r += 4
        while r < rows:
            at = place + 4 * r * STRETCH
            dot_rows(q + 4 * r * dim, dim, keys, dim, at, STRETCH, 1, literally(lanes), literally(stored))
            r += 1
        if stored == 1:
            for r in range(rows):
                multiply_row(
                    place + 4 * r * STRETCH, _scales(record, page) + 4 * (token % block_size), literally(lanes)
                )


@njit(nogil=True)
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
    dim, block_size = _get(record, Field.HEAD_DIM), _get(record, Field.BLOCK_SIZE)
    for token in range(start, end, lanes):
        page = _head_page(record, load_int32(table, token // block_size), head)
        values = page + (block_size + token % block_size) * dim * stored
        count = min(lanes, end - token)
        weights = scores + 4 * (token - start)
        if stored == 1:
            scale = _scales(record, page) + 4 * (block_size + token % block_size)
            for r in range(rows):
                multiply_row(weights + 4 * r * STRETCH, scale, literally(lanes))
        r = 0
        while r + 4 <= rows:
            at, to = weights + 4 * r * STRETCH, out + 4 * r * dim
            d = 0
            while d + 4 * lanes <= dim:
                v = values + d * stored
                add_weighted_rows(at, STRETCH, v, dim, count, to + 4 * d, 4, 4, literally(lanes), literally(stored))
                d += 4 * lanes
            while d < dim:
                v = values + d * stored
                add_weighted_rows(at, STRETCH, v, dim, count, to + 4 * d, 4, 1, literally(lanes), literally(stored))
                d += lanes
            r += 4
        while r < rows:
            at, to = weights + 4 * r * STRETCH, out + 4 * r * dim
            d = 0
            while d + 4 * lanes <= dim:
                v = values + d * stored
                add_weighted_rows(at, STRETCH, v, dim, count, to + 4 * d, 1, 4, literally(lanes), literally(stored))
                d += 4 * lanes
            while d < dim:
                v = values + d * stored
                add_weighted_rows(at, STRETCH, v, dim, count, to + 4 * d, 1, 1, literally(lanes), literally(stored))
                d += lanes
            r += 1


def store_kernel(lanes: int, itemsize: int, stored: int) -> Callable[[int], None]:
    """The kernel that stores the keys and values of a batch."""

    def store(record: int) -> None:
        _store(record, lanes, itemsize, stored)

    return store


def attend_kernel(lanes: int, itemsize: int, stored: int) -> Callable[[int], None]:
    """The kernel that attends the queries of a batch."""

    def attend(record: int) -> None:
        _attend(record, lanes, itemsize, stored)

    return attend
