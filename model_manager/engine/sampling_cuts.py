"""From a row of logits and its parameters to one token: what top_k, top_p, min_p and typical_p leave, and a draw.

The vocabulary is never sorted. What can be kept lies above a bound that is cheap to find; the tokens above it are
gathered, and thresholds are found among them by halving: an exact sum says on which side of a value the threshold lies,
and only that side is kept. A bound that was but likely is checked by its sum, and the whole row taken where it fails.
Knows one row, in its thread's slots (`Slot`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from model_manager.engine.sampling_record import BLOCK, SLOTS_HEAD, Float, Int, Slot
from model_manager.engine.sampling_vectors import (
    LANES,
    SHARE,
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
    thin,
    weigh,
    weighted_sum,
)
from model_manager.engine.vector_ops import load_int32, load_int64

CANDIDATES = 128
"""top_p is looked for among the tokens from this one of the maxima on first."""
_TAIL = 0.75
"""Of what top_p cuts, the share that the sample may show below a bound for it to be tried."""
_LOG2_E = 1.4426950408889634
_LEAST, _INFINITY = np.float32(-3.4028234663852886e38), np.float32(np.inf)
_SMALL_ERROR = 1e-5
"""More than a weight's logarithm, over the size of the numbers that it is made of, is off by."""


@njit(nogil=True, error_model="numpy")
def slot(slots: int, which: Any) -> Any:
    """Address of a slot; `slots` is that of the thread's memory, which begins with how many bytes a slot has."""
    return slots + SLOTS_HEAD + which * load_int64(slots, 0)


@njit(nogil=True, error_model="numpy")
def _threshold(values: int, weights: int, count: int, target: float, slots: int) -> Any:
    """The greatest value from which on weights sum to the target, or the least. At least one must be finite."""
    few, few_weights = slot(slots, Slot.FEW), slot(slots, Slot.FEW_WEIGHTS)
    above = 0.0
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


@njit(nogil=True, error_model="numpy")
def nth_greatest(values: int, count: int, n: int, slots: int) -> Any:
    """What n of the values reach; less than all that are finite where they are fewer."""
    ones = slot(slots, Slot.ONES)
    fill(ones, count, np.float32(1.0))
    if sum_from(values, ones, count, _LEAST) < n:
        return _LEAST
    return _threshold(values, ones, count, float(n), slots)


@njit(nogil=True, error_model="numpy")
def bound_of(n: int, count: int, slots: int) -> Any:
    """A value that at least n tokens reach, or all that are not ruled out: the nth of the maxima."""
    if n > count // BLOCK * LANES:
        return _LEAST
    return nth_greatest(slot(slots, Slot.MAXIMA), count // BLOCK * LANES, n, slots)


@njit(nogil=True, error_model="numpy")
def factor_of(temperature: float) -> Any:
    """What a logit is multiplied by to be a power of 2."""
    return np.float32(min(_LOG2_E / temperature, 3e38))


@njit(nogil=True, error_model="numpy")
def _likely_bound(count: int, best: Any, factor: Any, top_p: float, mass: float, slots: int) -> Any:
    """What is probably below all that top_p keeps, not far: estimated from every 16th vector's tail."""
    sample, weights = slot(slots, Slot.KEPT), slot(slots, Slot.WEIGHTS)
    size = thin(slot(slots, Slot.ROW), count, sample)
    found = weigh(sample, weights, size, best, factor)
    few = bound_of(CANDIDATES, count, slots)
    if found <= 0 or few == _LEAST:
        return _LEAST
    return min(few, _threshold(sample, weights, size, found - _TAIL * (1 - top_p) * mass / SHARE, slots))


@njit(nogil=True, error_model="numpy")
def _sure_bound(count: int, best: Any, ints: int, floats: int, slots: int) -> Any:
    """What nothing that is kept is below."""
    top_k, min_p = load_int64(ints, Int.TOP_K), load_double(floats, Float.MIN_P)
    if top_k > 0:
        return bound_of(top_k, count, slots)
    if min_p > 0:
        temperature, far = load_double(floats, Float.TEMPERATURE), np.log(min_p)
        error = _SMALL_ERROR * (abs(np.float64(best)) + temperature * (1.0 - far))
        return max(_LEAST, np.float32(best + temperature * far - error))
    return _LEAST


@njit(nogil=True, error_model="numpy")
def _take(count: int, least: Any, best: Any, factor: Any, slots: int) -> Any:
    """Gather and weigh the tokens from that value on: (how many, the sum of their weights)."""
    values = slot(slots, Slot.KEPT)
    found = gather(slot(slots, Slot.ROW), count, values, slot(slots, Slot.IDS), least)
    return found, weigh(values, slot(slots, Slot.WEIGHTS), found, best, factor)


@njit(nogil=True, error_model="numpy")
def _keep_top_p(found: int, total: float, target: float, slots: int) -> None:
    """Of the tokens gathered, whose weights sum to `total`."""
    values, weights = slot(slots, Slot.KEPT), slot(slots, Slot.WEIGHTS)
    if total >= target:
        drop_below(values, weights, found, _threshold(values, weights, found, target, slots))


@njit(nogil=True, error_model="numpy")
def _keep_typical(found: int, share: float, slots: int) -> None:
    """The tokens whose information is nearest to the entropy (Meister et al., arXiv:2202.00666).

    Both hold the temperature and the log of all weights, which cancel. The logits are lost.
    """
    values, weights = slot(slots, Slot.KEPT), slot(slots, Slot.WEIGHTS)
    total = sum_blocks(weights, found, slot(slots, Slot.SUMS))
    rank_by_distance(values, found, weighted_sum(values, weights, found) / total)
    drop_below(values, weights, found, _threshold(values, weights, found, share * total, slots))


@njit(nogil=True, error_model="numpy")
def _cut(count: int, best: Any, factor: Any, ints: int, floats: int, slots: int) -> Any:
    """Gather what may be kept, and give weight 0 to what is not; how many were gathered."""
    top_k, top_p = load_int64(ints, Int.TOP_K), load_double(floats, Float.TOP_P)
    sums, weights = slot(slots, Slot.SUMS), slot(slots, Slot.WEIGHTS)
    sure = _sure_bound(count, best, ints, floats, slots)
    if top_k > 0:
        values, (found, total) = slot(slots, Slot.KEPT), _take(count, sure, best, factor, slots)
        drop_below(values, weights, found, nth_greatest(values, found, top_k, slots))
        if top_p < 1:
            total = sum_blocks(weights, found, sums)
            _keep_top_p(found, total, top_p * total, slots)
    elif top_p < 1:
        target = top_p * sum_weights(slot(slots, Slot.ROW), count, sums, best, factor)
        likely = _likely_bound(count, best, factor, top_p, target / top_p, slots)
        found, total = _take(count, max(likely, sure), best, factor, slots)
        if likely > sure and total < target:
            found, total = _take(count, sure, best, factor, slots)
        _keep_top_p(found, total, target, slots)
    else:
        found, total = _take(count, sure, best, factor, slots)
    return found


@njit(nogil=True, error_model="numpy")
def _block_of(sums: int, count: int, aim: float) -> Any:
    """(The block in which running sums exceed `aim`, or the last that has any; the sum before it)."""
    block, before, reached = 0, 0.0, 0.0
    for candidate in range((count + BLOCK - 1) // BLOCK):
        in_block = load_double(sums, candidate)
        if in_block > 0:
            block, before = candidate, reached
            reached += in_block
            if reached > aim:
                break
    return block, before


@njit(nogil=True, error_model="numpy")
def _place_of(weights: int, count: int, aim: float) -> int:
    """Where running sums exceed `aim`, or the last that has a weight."""
    reached, last = 0.0, 0
    for i in range(count):
        weight = load_float(weights, i)
        if weight > 0:
            reached, last = reached + np.float64(weight), i
            if reached > aim:
                break
    return last


@njit(nogil=True, error_model="numpy")
def draw(count: int, best: Any, ints: int, floats: int, slots: int) -> Any:
    """A token of the row in its slot, which `count` elements fill and whose greatest is `best`, by its random number.

    `ints` and `floats` are the addresses of the row's numbers; top_k is 0 where it cuts nothing. By inverse transform,
    in order of token ids.
    """
    factor, uniform = factor_of(load_double(floats, Float.TEMPERATURE)), load_double(floats, Float.UNIFORM)
    min_p, typical_p = load_double(floats, Float.MIN_P), load_double(floats, Float.TYPICAL_P)
    sums, weights, row = slot(slots, Slot.SUMS), slot(slots, Slot.WEIGHTS), slot(slots, Slot.ROW)
    if load_int64(ints, Int.TOP_K) == 0 and load_double(floats, Float.TOP_P) >= 1 and min_p <= 0 and typical_p >= 1:
        aim = uniform * sum_weights(row, count, sums, best, factor)
        block, before = _block_of(sums, count, aim)
        weigh(row + 4 * BLOCK * block, weights, BLOCK, best, factor)
        return block * BLOCK + _place_of(weights, BLOCK, aim - before)
    found = _cut(count, best, factor, ints, floats, slots)
    if min_p > 0:
        drop_below(weights, weights, found, np.float32(min_p))
    if typical_p < 1:
        _keep_typical(found, typical_p, slots)
    aim = uniform * sum_blocks(weights, found, sums)
    block, before = _block_of(sums, found, aim)
    place = block * BLOCK + _place_of(weights + 4 * BLOCK * block, min(BLOCK, found - block * BLOCK), aim - before)
    return load_int32(slot(slots, Slot.IDS), place)
