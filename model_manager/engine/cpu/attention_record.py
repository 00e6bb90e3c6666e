"""The record of arguments of the paged KV cache's CPU kernels, and the layout of a block.

A block holds a page for each KV head: its keys, then its values. Keys lie in groups of `lanes` tokens, [group, dim,
lanes], so that one vector multiplies and adds the scores of a whole group; values lie [token, dim]. Where they are
rounded to int8, a float32 for each token's key follows, then one for each value: what a step of it is worth. As these
multiply scores and weights, they cost one product a token and not one an element.

A kernel is an OpenMP region's body: every thread of the team runs it and draws tasks from a common counter. Its one
argument is the address of an int64 record (`AttentionField`); it allocates nothing and knows no Python. `itemsize` is
the bytes of an element of the batch, `stored` of one in the cache.
"""

from __future__ import annotations

import enum
from typing import Any

from numba import njit

from .records import get


class AttentionField(enum.IntEnum):
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


@njit(inline="always")
def head_page(record: int, block: int, head: int) -> Any:
    """Address of a head's page in a block."""
    page = block * get(record, AttentionField.NUM_KV_HEADS) + head
    return get(record, AttentionField.CACHE) + page * get(record, AttentionField.PAGE_BYTES)


@njit(inline="always")
def key_scales(record: int, page: int) -> Any:
    """Address of the float32 scales of a page's int8 keys; the scales of its values follow."""
    return page + 2 * get(record, AttentionField.BLOCK_SIZE) * get(record, AttentionField.HEAD_DIM)
