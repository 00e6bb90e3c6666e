"""Draws one token from a row of logits, among those that top_k, top_p, min_p and typical_p leave.

The vocabulary is never sorted. Thresholds are found by halving: an exact sum says on which side of a value the
threshold lies, and only that side is kept. Cheap bounds keep most tokens out from the start.
Knows one row, in its thread's slots (`Slot`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..cpu.vector_ops import load_int32, load_int64
from .kernel_record import BLOCK, SLOTS_HEAD, Float, Int, Slot
from .vector_passes import (
    LANES,
    drop_below,
    fill,
    gather,
    keep,
    load_double,
    load_float,
    rank_by_distance,
    span,
    sum_blocks,
    sum_from,
    sum_weights,
    weigh,
    weighted_sum,
)

_LOG2_E = 1.4426950408889634
_LEAST, _INFINITY = np.float32(-3.4028234663852886e38), np.float32(np.inf)
_MOST = 3e38


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def slot(slots: int, which: Any) -> Any:
    """Address of a slot. `slots` is the address of the thread's memory; its first int64 is the bytes of a slot."""
    return slots + SLOTS_HEAD + which * load_int64(slots, 0)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _narrow(values: int, weights: int, count: int, above: float, target: float, slots: int) -> Any:
    """The greatest value such that the weights of values at least as great, and the weights `above`, sum to the target;
    the least value if none does.
    """
    few, few_weights = slot(slots, Slot.FEW), slot(slots, Slot.FEW_WEIGHTS)
    while True:
        low, high = span(values, count)
        if not low < high:
            return low
        middle = np.float32(0.5) * low + np.float32(0.5) * high
        if middle <= low:
            middle = high
        mass = sum_from(values, weights, count, middle)
        if above + mass >= target:
            low, high = middle, _INFINITY
        else:
            high, above = middle, above + mass
        count = keep(values, weights, count, few, few_weights, low, high)
        values, weights = few, few_weights


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def bound_of(n: int, count: int, slots: int) -> Any:
    """A value that at least n tokens reach, or all tokens that are not ruled out: the nth of the maxima."""
    maxima, ones, size = slot(slots, Slot.MAXIMA), slot(slots, Slot.ONES), count // BLOCK * LANES
    fill(ones, size, np.float32(1.0))
    if sum_from(maxima, ones, size, _LEAST) < n:
        return _LEAST
    return _narrow(maxima, ones, size, 0.0, float(n), slots)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def factor_of(temperature: float) -> Any:
    """The factor that makes a logit an exponent of 2."""
    factor = _LOG2_E / temperature
    return np.float32(factor if factor < _MOST else _MOST)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _keep_typical(found: int, share: float, slots: int) -> None:
    """Keep the tokens whose information is nearest to the entropy (Meister et al., arXiv:2202.00666).

    Both hold the temperature and the log of all weights, which cancel. Overwrites the logits.
    """
    values, weights = slot(slots, Slot.KEPT), slot(slots, Slot.WEIGHTS)
    total = sum_blocks(weights, found, slot(slots, Slot.SUMS))
    rank_by_distance(values, found, weighted_sum(values, weights, found) / total)
    drop_below(values, weights, found, _narrow(values, weights, found, 0.0, share * total, slots))


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _keep_top_k_and_p(found: int, top_k: int, top_p: float, slots: int) -> None:
    """Give weight 0 to the gathered tokens that top_k cuts, then to those that top_p cuts."""
    values, weights, ones = slot(slots, Slot.KEPT), slot(slots, Slot.WEIGHTS), slot(slots, Slot.ONES)
    if top_k < found:
        fill(ones, found, np.float32(1.0))
        drop_below(values, weights, found, _narrow(values, ones, found, 0.0, float(top_k), slots))
    if top_p < 1:
        total = sum_blocks(weights, found, slot(slots, Slot.SUMS))
        drop_below(values, weights, found, _narrow(values, weights, found, 0.0, top_p * total, slots))


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def cuts(ints: int, floats: int) -> Any:
    """True if any parameter cuts something; top_k is 0 if it does not."""
    min_p, typical_p = load_double(floats, Float.MIN_P), load_double(floats, Float.TYPICAL_P)
    return load_int64(ints, Int.TOP_K) > 0 or load_double(floats, Float.TOP_P) < 1 or min_p > 0 or typical_p < 1


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def cut(count: int, best: Any, ints: int, floats: int, slots: int) -> Any:
    """Gather the tokens of a row that may be kept, and give weight 0 to those that are cut; returns how many were
    gathered.

    `count` elements fill the row, whose greatest is `best`; `ints` and `floats` are the addresses of its numbers.
    """
    top_k, top_p = load_int64(ints, Int.TOP_K), load_double(floats, Float.TOP_P)
    min_p, typical_p = load_double(floats, Float.MIN_P), load_double(floats, Float.TYPICAL_P)
    row, all_weights, weights = slot(slots, Slot.ROW), slot(slots, Slot.ALL_WEIGHTS), slot(slots, Slot.WEIGHTS)
    total = weigh(row, all_weights, count, best, factor_of(load_double(floats, Float.TEMPERATURE)))
    bound = bound_of(top_k, count, slots) if top_k > 0 else _LEAST
    if top_k == 0 and top_p < 1:
        least = _narrow(row, all_weights, count, 0.0, top_p * total, slots)
        bound = least if least > bound else bound
    found = gather(row, all_weights, count, slot(slots, Slot.KEPT), weights, slot(slots, Slot.IDS), bound)
    if top_k > 0:
        _keep_top_k_and_p(found, top_k, top_p, slots)
    if min_p > 0:
        drop_below(weights, weights, found, np.float32(min_p))
    if typical_p < 1:
        _keep_typical(found, typical_p, slots)
    return found


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _block_of(sums: int, count: int, aim: float) -> Any:
    """The block in which running sums exceed `aim`, or the last block with a weight; and the sum before it."""
    block, before, reached = 0, 0.0, 0.0
    for candidate in range((count + BLOCK - 1) // BLOCK):
        in_block = load_double(sums, candidate)
        if in_block > 0:
            block, before = candidate, reached
            reached += in_block
            if reached > aim:
                break
    return block, before


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _place_of(weights: int, aim: float) -> int:
    """The place where a block's running sums exceed `aim`, or the last place with a weight."""
    reached, last = 0.0, 0
    for i in range(BLOCK):
        weight = load_float(weights, i)
        if weight > 0:
            reached, last = reached + np.float64(weight), i
            if reached > aim:
                break
    return last


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def draw_from_all(count: int, best: Any, floats: int, slots: int) -> Any:
    """Draw a token of a row that nothing is cut from, by inverse transform in order of token ids, as `draw`."""
    factor, sums = factor_of(load_double(floats, Float.TEMPERATURE)), slot(slots, Slot.SUMS)
    row, weights = slot(slots, Slot.ROW), slot(slots, Slot.WEIGHTS)
    aim = load_double(floats, Float.UNIFORM) * sum_weights(row, count, sums, best, factor)
    block, before = _block_of(sums, count, aim)
    weigh(row + 4 * block * BLOCK, weights, BLOCK, best, factor)
    return block * BLOCK + _place_of(weights, aim - before)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def draw(found: int, floats: int, slots: int) -> Any:
    """Draw one of the gathered tokens."""
    sums, weights = slot(slots, Slot.SUMS), slot(slots, Slot.WEIGHTS)
    fill(weights + 4 * found, BLOCK, np.float32(0.0))  # the last block is read to its end, too
    aim = load_double(floats, Float.UNIFORM) * sum_blocks(weights, found, sums)
    block, before = _block_of(sums, found, aim)
    place = block * BLOCK + _place_of(weights + 4 * block * BLOCK, aim - before)
    return load_int32(slot(slots, Slot.IDS), place)
