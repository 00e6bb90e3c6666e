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
_MOST = 3e38
_SMALL_ERROR = 1e-5
"""More than a weight's logarithm, over the size of the numbers that it is made of, is off by."""


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def slot(slots: int, which: Any) -> Any:
    """Address of a slot; `slots` is that of the thread's memory, which begins with how many bytes a slot has."""
    return slots + SLOTS_HEAD + which * load_int64(slots, 0)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
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


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def nth_greatest(values: int, count: int, n: int, slots: int) -> Any:
    """What n of the values reach; less than all that are finite where they are fewer."""
    ones = slot(slots, Slot.ONES)
    fill(ones, count, np.float32(1.0))
    if sum_from(values, ones, count, _LEAST) < n:
        return _LEAST
    return _threshold(values, ones, count, float(n), slots)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def bound_of(n: int, count: int, slots: int) -> Any:
    """A value that at least n tokens reach, or all that are not ruled out: the nth of the maxima."""
    if n > count // BLOCK * LANES:
        return _LEAST
    return nth_greatest(slot(slots, Slot.MAXIMA), count // BLOCK * LANES, n, slots)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def factor_of(temperature: float) -> Any:
    """What a logit is multiplied by to be a power of 2."""
    factor = _LOG2_E / temperature
    return np.float32(factor if factor < _MOST else _MOST)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _likely_bound(count: int, best: Any, factor: Any, top_p: float, mass: float, slots: int) -> Any:
    """What is probably below all that top_p keeps, not far: estimated from every 16th vector's tail."""
    sample, weights = slot(slots, Slot.KEPT), slot(slots, Slot.WEIGHTS)
    size = thin(slot(slots, Slot.ROW), count, sample)
    found = weigh(sample, weights, size, best, factor)
    few = bound_of(np.int64(CANDIDATES), count, slots)
    if found <= 0 or few == _LEAST:
        return _LEAST
    low = _threshold(sample, weights, size, found - _TAIL * (1 - top_p) * mass / SHARE, slots)
    return low if low < few else few


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _sure_bound(count: int, best: Any, ints: int, floats: int, slots: int) -> Any:
    """What nothing that is kept is below."""
    top_k, min_p = load_int64(ints, Int.TOP_K), load_double(floats, Float.MIN_P)
    if top_k > 0:
        return bound_of(top_k, count, slots)
    if min_p > 0:
        temperature, far = load_double(floats, Float.TEMPERATURE), np.log(min_p)
        error = _SMALL_ERROR * (abs(np.float64(best)) + temperature * (1.0 - far))
        bound = np.float32(best + temperature * far - error)
        return bound if bound > _LEAST else _LEAST
    return _LEAST


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _take(count: int, least: Any, best: Any, factor: Any, slots: int) -> Any:
    """Gather and weigh the tokens from that value on: (how many, the sum of their weights)."""
    values = slot(slots, Slot.KEPT)
    found = gather(slot(slots, Slot.ROW), count, values, slot(slots, Slot.IDS), least)
    return found, weigh(values, slot(slots, Slot.WEIGHTS), found, best, factor)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _keep_typical(found: int, share: float, slots: int) -> None:
    """The tokens whose information is nearest to the entropy (Meister et al., arXiv:2202.00666).

    Both hold the temperature and the log of all weights, which cancel. The logits are lost.
    """
    values, weights = slot(slots, Slot.KEPT), slot(slots, Slot.WEIGHTS)
    total = sum_blocks(weights, found, slot(slots, Slot.SUMS))
    rank_by_distance(values, found, weighted_sum(values, weights, found) / total)
    drop_below(values, weights, found, _threshold(values, weights, found, share * total, slots))


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _gather(count: int, best: Any, ints: int, floats: int, slots: int) -> Any:
    """Gather what may be kept, and give weight 0 to what top_k and top_p cut; how many were gathered."""
    top_k, top_p = load_int64(ints, Int.TOP_K), load_double(floats, Float.TOP_P)
    factor, weights = factor_of(load_double(floats, Float.TEMPERATURE)), slot(slots, Slot.WEIGHTS)
    sure, target = _sure_bound(count, best, ints, floats, slots), np.inf
    likely = sure
    if top_k == 0 and top_p < 1:
        mass = sum_weights(slot(slots, Slot.ROW), count, slot(slots, Slot.SUMS), best, factor)
        target = top_p * mass
        likely = _likely_bound(count, best, factor, top_p, mass, slots)
    found, total = _take(count, likely if likely > sure else sure, best, factor, slots)
    if likely > sure and total < target:
        found, total = _take(count, sure, best, factor, slots)
    values = slot(slots, Slot.KEPT)
    if top_k > 0:
        drop_below(values, weights, found, nth_greatest(values, found, top_k, slots))
        if top_p < 1:
            total = sum_blocks(weights, found, slot(slots, Slot.SUMS))
            target = top_p * total
    if total >= target:
        drop_below(values, weights, found, _threshold(values, weights, found, target, slots))
    return found


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def cuts(ints: int, floats: int) -> Any:
    """Whether any parameter cuts something; top_k is 0 where it does not."""
    min_p, typical_p = load_double(floats, Float.MIN_P), load_double(floats, Float.TYPICAL_P)
    return load_int64(ints, Int.TOP_K) > 0 or load_double(floats, Float.TOP_P) < 1 or min_p > 0 or typical_p < 1


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def cut(count: int, best: Any, ints: int, floats: int, slots: int) -> Any:
    """Gather what may be kept of a row in its slot, and give weight 0 to what is not; how many were gathered.

    `count` elements fill the row, whose greatest is `best`; `ints` and `floats` are the addresses of its numbers.
    """
    found, weights = _gather(count, best, ints, floats, slots), slot(slots, Slot.WEIGHTS)
    min_p, typical_p = load_double(floats, Float.MIN_P), load_double(floats, Float.TYPICAL_P)
    if min_p > 0:
        drop_below(weights, weights, found, np.float32(min_p))
    if typical_p < 1:
        _keep_typical(found, typical_p, slots)
    return found


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
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


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _place_of(weights: int, aim: float) -> int:
    """Where a block's running sums exceed `aim`, or the last that has a weight."""
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
    """A token of a row that nothing is cut from. By inverse transform, in order of token ids, as `draw`."""
    factor, sums = factor_of(load_double(floats, Float.TEMPERATURE)), slot(slots, Slot.SUMS)
    row, weights = slot(slots, Slot.ROW), slot(slots, Slot.WEIGHTS)
    aim = load_double(floats, Float.UNIFORM) * sum_weights(row, count, sums, best, factor)
    block, before = _block_of(sums, count, aim)
    weigh(row + 4 * block * BLOCK, weights, BLOCK, best, factor)
    return block * BLOCK + _place_of(weights, aim - before)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def draw(found: int, floats: int, slots: int) -> Any:
    """One of the tokens gathered."""
    sums, weights = slot(slots, Slot.SUMS), slot(slots, Slot.WEIGHTS)
    fill(weights + 4 * found, BLOCK, np.float32(0.0))  # the last block, too, is gone through to its end
    aim = load_double(floats, Float.UNIFORM) * sum_blocks(weights, found, sums)
    block, before = _block_of(sums, found, aim)
    place = block * BLOCK + _place_of(weights + 4 * block * BLOCK, aim - before)
    return load_int32(slot(slots, Slot.IDS), place)
