"""The CPU's sampling kernel, compiled by Numba: each row of logits → a token, and log-probabilities where asked for.

A greedy row is read once, for its maximum. Any other is copied on the way into memory of its thread, edited there, and
a token drawn. What is drawn is a function of the row alone, whichever thread takes it. The order of processing is
docs/reference/sampling.md's.

The kernel is an OpenMP region's body: every thread of the team runs it and draws rows from a common counter. Its one
argument is the address of an int64 record (`Field`). Knows no torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..cpu.vector_ops import fetch_add, load_int32, load_int64
from .cuts import bound_of, cut, cuts, draw, draw_from_all, factor_of, slot
from .edits import edit, has_edits
from .kernel_record import BLOCK, FINE, IMPOSSIBLE, NOT_FINITE, Field, Float, Int, Slot
from .vector_passes import (
    LANES,
    copy,
    fill,
    gather,
    load_double,
    load_float,
    note_maxima,
    store_float,
    store_int32,
    store_int64,
    sum_weights,
)

NUM_INTS, NUM_FLOATS = len(Int), len(Float)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _greatest(raw: int, vocab_size: int, copies: bool, slots: int) -> Any:
    """The greatest logit, NaN if one is; fills MAXIMA. ROW gets the last block, and the others where `copies`."""
    row, maxima = slot(slots, Slot.ROW), slot(slots, Slot.MAXIMA)
    whole = vocab_size // BLOCK * BLOCK
    best = note_maxima(raw, row, whole, maxima, 1) if copies else note_maxima(raw, row, whole, maxima, 0)
    if whole < vocab_size:
        last = row + 4 * whole
        fill(last, BLOCK, np.float32(-np.inf))
        copy(raw + 4 * whole, last, vocab_size - whole)
        best_of_last = note_maxima(last, last, BLOCK, maxima + 4 * (whole // BLOCK * LANES), 0)
        best = best if np.isnan(best) or best > best_of_last else best_of_last
    return best


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _first_of(values: int, best: Any, slots: int) -> int:
    """The first token with the greatest logit."""
    maxima = slot(slots, Slot.MAXIMA)
    place = 0
    while load_float(maxima, place) != best:
        place += 1
    token = place // LANES * BLOCK  # token i of a block is in lane i % LANES
    while load_float(values, token) != best:
        token += 1
    return token


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _note_top(count: int, wanted: int, log_total: float, slots: int, top_ids: int, top: int) -> None:
    """Write the likeliest tokens and their log-probabilities; equal ones in order of their ids."""
    row, values, ids = slot(slots, Slot.ROW), slot(slots, Slot.KEPT), slot(slots, Slot.IDS)
    found = gather(row, row, count, values, slot(slots, Slot.WEIGHTS), ids, bound_of(wanted, count, slots))
    for place in range(found if found < wanted else wanted):
        best = -1
        for i in range(found):
            if load_int32(ids, i) >= 0 and (best < 0 or load_float(values, i) > load_float(values, best)):
                best = i
        store_int64(top_ids, place, load_int32(ids, best))
        store_float(top, place, np.float32(np.float64(load_float(values, best)) - log_total))
        store_int32(ids, best, -1)  # taken
    token = 0
    for place in range(found, wanted):  # tokens that the model itself rules out
        while load_float(row, token) > -np.inf:
            token += 1
        store_int64(top_ids, place, token)
        store_float(top, place, np.float32(-np.inf))
        token += 1


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _log_total(record: int, index: int, count: int, best: Any, num_logprobs: int, slots: int) -> Any:
    """The logarithm of the sum of exp(logit) over the row in ROW; writes the likeliest tokens."""
    total = sum_weights(slot(slots, Slot.ROW), count, slot(slots, Slot.SUMS), best, factor_of(1.0))
    log_total = np.log(total) + np.float64(best)
    if num_logprobs > 0:
        place = index * load_int64(record, Field.TOP_STRIDE)
        top_ids, top = load_int64(record, Field.OUT_TOP_IDS) + 8 * place, load_int64(record, Field.OUT_TOP) + 4 * place
        _note_top(count, num_logprobs, log_total, slots, top_ids, top)
    return log_total


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, inline="always")
def _sample_row(record: int, index: int, slots: int) -> int:
    """Write a row's token and log-probabilities; returns its status."""
    vocab_size = load_int64(record, Field.VOCAB_SIZE)
    ints = load_int64(record, Field.INTS) + index * 8 * NUM_INTS
    floats = load_int64(record, Field.FLOATS) + index * 8 * NUM_FLOATS
    raw = load_int64(record, Field.LOGITS) + index * load_int64(record, Field.LOGITS_STRIDE)
    num_logprobs, greedy = load_int64(ints, Int.NUM_LOGPROBS), load_double(floats, Float.TEMPERATURE) == 0
    edited = has_edits(record, index, ints, floats)
    best = likeliest = _greatest(raw, vocab_size, edited or num_logprobs >= 0 or not greedy, slots)
    if not np.isfinite(best):
        return NOT_FINITE
    count, row = (vocab_size + BLOCK - 1) // BLOCK * BLOCK, slot(slots, Slot.ROW)
    log_total = 0.0
    if num_logprobs >= 0:
        log_total = _log_total(record, index, count, best, num_logprobs, slots)
    if edited:
        edit(record, index, row, count, ints, floats, slot(slots, Slot.MARKS), slot(slots, Slot.KEPT))
        best = note_maxima(row, row, count, slot(slots, Slot.MAXIMA), 0)
        if best == -np.inf:
            return IMPOSSIBLE
    if greedy:
        token = _first_of(row if edited else raw, best, slots)
    elif cuts(ints, floats):
        token = draw(cut(count, best, ints, floats, slots), floats, slots)
    else:
        token = draw_from_all(count, best, floats, slots)
    own = load_float(raw, token)
    store_int64(load_int64(record, Field.OUT_TOKENS), index, token)
    store_int64(load_int64(record, Field.OUT_GREEDY), index, own == likeliest)
    store_float(load_int64(record, Field.OUT_OWN), index, np.float32(np.float64(own) - log_total))
    return FINE


def sample_rows(record: int) -> None:
    """Sample rows until none is left, in this thread's slots."""
    thread = fetch_add(record + 8 * Field.THREAD_COUNTER)
    slots = load_int64(record, Field.SLOTS) + thread * load_int64(record, Field.THREAD_BYTES)
    rows = load_int64(record, Field.NUM_ROWS)
    row = fetch_add(record + 8 * Field.ROW_COUNTER)
    while row < rows:
        store_int64(load_int64(record, Field.OUT_STATUS), row, _sample_row(record, row, slots))
        row = fetch_add(record + 8 * Field.ROW_COUNTER)
