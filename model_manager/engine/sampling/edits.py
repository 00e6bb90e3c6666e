"""Edits a row's logits by its own history and rules: penalties, bias and masks, in that order, in place.

Touches only the tokens that occurred or that a rule names; knows one row, not what is sampled from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..cpu.vector_ops import load_int32, load_int64
from .kernel_record import Field, Float, Int
from .vector_passes import fill, load_double, load_float, rule_out, store_float, store_int32

_PROMPT = 1 << 30
"""Marks a token of the prompt; smaller bits count how often it was generated."""


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _penalise(row: int, tokens: int, count: int, num_prompt: int, floats: int, marks: int) -> None:
    """Repetition (Keskar et al., arXiv:1909.05858) over all tokens, frequency and presence over those from `num_prompt`
    on; `marks` is zero before and after.
    """
    repetition = np.float32(load_double(floats, Float.REPETITION_PENALTY))
    presence = np.float32(load_double(floats, Float.PRESENCE_PENALTY))
    frequency = np.float32(load_double(floats, Float.FREQUENCY_PENALTY))
    first = num_prompt if repetition == 1 else 0
    for i in range(first, count):
        token = load_int32(tokens, i)
        mark = load_int32(marks, token)
        store_int32(marks, token, mark | _PROMPT if i < num_prompt else mark + 1)
    for i in range(first, count):
        token = load_int32(tokens, i)
        mark = load_int32(marks, token)
        if mark:
            store_int32(marks, token, 0)
            times = np.float32(mark & (_PROMPT - 1))
            logit = load_float(row, token)
            logit = logit / repetition if logit > 0 else logit * repetition
            store_float(row, token, logit - times * frequency - (presence if times > 0 else np.float32(0.0)))


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _bounds(record: int, index: int, starts: Any) -> Any:
    """The range of a list's entries that belong to a row."""
    where = load_int64(record, starts)
    return load_int64(where, index), load_int64(where, index + 1)


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _allow(record: int, row: int, count: int, first: int, end: int, spare: int) -> None:
    """Rule out all tokens but these."""
    ids = load_int64(record, Field.ALLOWED_IDS)
    for i in range(first, end):
        store_float(spare, i - first, load_float(row, load_int64(ids, i)))
    fill(row, count, np.float32(-np.inf))
    for i in range(first, end):
        store_float(row, load_int64(ids, i), load_float(spare, i - first))


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def _has_penalty(floats: int) -> Any:
    frequency, presence = load_double(floats, Float.FREQUENCY_PENALTY), load_double(floats, Float.PRESENCE_PENALTY)
    return load_double(floats, Float.REPETITION_PENALTY) != 1 or frequency != 0 or presence != 0


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def has_edits(record: int, index: int, ints: int, floats: int) -> Any:
    """True if `edit` would change anything."""
    if _has_penalty(floats) or load_int64(ints, Int.MASK_ROW) >= 0:
        return True
    first, end = _bounds(record, index, Field.BIASED_STARTS)
    allowed, allowed_end = _bounds(record, index, Field.ALLOWED_STARTS)
    banned, banned_end = _bounds(record, index, Field.BANNED_STARTS)
    return end > first or allowed_end > allowed or banned_end > banned


@njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)
def edit(record: int, index: int, row: int, count: int, ints: int, floats: int, marks: int, spare: int) -> None:
    """Edit row `index` of the batch, which lies at address `row` and fills `count` elements."""
    if _has_penalty(floats):
        place = load_int64(record, Field.TOKENS_STRIDE) * load_int64(ints, Int.TOKEN_ROW)
        tokens = load_int64(record, Field.TOKENS) + 4 * place
        num_tokens, num_prompt = load_int64(ints, Int.NUM_TOKENS), load_int64(ints, Int.NUM_PROMPT_TOKENS)
        _penalise(row, tokens, num_tokens, num_prompt, floats, marks)
    first, end = _bounds(record, index, Field.BIASED_STARTS)
    ids, biases = load_int64(record, Field.BIASED_IDS), load_int64(record, Field.BIASED_VALUES)
    for i in range(first, end):
        token = load_int64(ids, i)
        store_float(row, token, load_float(row, token) + load_float(biases, i))
    first, end = _bounds(record, index, Field.ALLOWED_STARTS)
    if end > first:
        _allow(record, row, count, first, end, spare)
    first, end = _bounds(record, index, Field.BANNED_STARTS)
    ids = load_int64(record, Field.BANNED_IDS)
    for i in range(first, end):
        store_float(row, load_int64(ids, i), np.float32(-np.inf))
    mask_row = load_int64(ints, Int.MASK_ROW)
    if mask_row >= 0:
        words = load_int64(record, Field.MASK_WORDS)
        rule_out(row, load_int64(record, Field.MASKS) + 4 * words * mask_row, words)
