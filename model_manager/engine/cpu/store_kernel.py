"""The CPU kernel that stores a step's keys and values in the paged KV cache, laid out as attention_record.py says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from .attention_record import AttentionField, head_page, key_scales
from .records import get
from .vector_ops import fetch_add, load_int64, prefetch, round_row, spread

STORE_TOKENS = 32
"""Tokens of one KV head that a storing task takes."""


@njit(inline="always")
def _store(record: int, lanes: Any, itemsize: Any, stored: Any) -> None:
    heads, tokens = get(record, AttentionField.NUM_KV_HEADS), get(record, AttentionField.NUM_TOKENS)
    tasks = (tokens + STORE_TOKENS - 1) // STORE_TOKENS * heads
    task = fetch_add(record + 8 * AttentionField.STORE_COUNTER)
    while task < tasks:
        first = task // heads * STORE_TOKENS
        end = min(first + STORE_TOKENS, tokens)
        for token in range(first, end):
            if token + 1 < end:
                _ask_for_keys(record, token, token + 1, task % heads, lanes, stored)
            _store_token(record, token, task % heads, lanes, itemsize, stored)
        task = fetch_add(record + 8 * AttentionField.STORE_COUNTER)


@njit(inline="always")
def _store_token(record: int, token: int, head: int, lanes: Any, itemsize: Any, stored: Any) -> None:
    dim, block_size = get(record, AttentionField.HEAD_DIM), get(record, AttentionField.BLOCK_SIZE)
    slot = load_int64(get(record, AttentionField.SLOTS), token)
    page = head_page(record, slot // block_size, head)
    offset = slot % block_size
    lane = offset % lanes
    key = get(record, AttentionField.KEY) + token * get(record, AttentionField.KEY_STRIDE) + head * dim * itemsize
    value = get(record, AttentionField.VALUE) + token * get(record, AttentionField.VALUE_STRIDE) + head * dim * itemsize
    key_place = page + ((offset - lane) * dim + lane) * stored
    value_place = page + (block_size + offset) * dim * stored
    if stored == 1:
        scale = key_scales(record, page) + 4 * offset
        round_row(key, key_place, dim, lanes, scale, lanes, itemsize)
        round_row(value, value_place, dim, 1, scale + 4 * block_size, lanes, itemsize)
    else:
        spread(key, key_place, dim, lanes, itemsize)
        spread(value, value_place, dim, 1, itemsize)


@njit(inline="always")
def _ask_for_keys(record: int, token: int, following: int, head: int, lanes: Any, stored: Any) -> None:
    """Prefetch the cache lines for the `following` token's key, one a dimension, if they are not `token`'s."""
    slots = get(record, AttentionField.SLOTS)
    dim, block_size = get(record, AttentionField.HEAD_DIM), get(record, AttentionField.BLOCK_SIZE)
    slot = load_int64(slots, following)
    if slot // lanes != load_int64(slots, token) // lanes:
        page = head_page(record, slot // block_size, head)
        prefetch(page + slot % block_size // lanes * lanes * dim * stored, lanes * dim * stored)


def store_kernel(lanes: int, itemsize: int, stored: int) -> Callable[[int], None]:
    """The kernel that stores the keys and values of a batch."""

    def store(record: int) -> None:
        _store(record, lanes, itemsize, stored)

    return store
