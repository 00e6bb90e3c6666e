"""Sampling parameters within what an engine can hold: libraries keep them in 32 bits, and refuse the ends of ranges.

A value at such an end is given as the nearest one that means the same. Knows no engine.
"""

from __future__ import annotations

from ..wire.sampling import SamplingParams

COLDEST = 1e-5
"""Below this temperature the likeliest token is the only one left; a logit divided by much less is infinite."""
_LEAST = 2.0**-126
"""The smallest float32 above 0 that has all its digits."""
_BELOW_ONE = 1 - 2.0**-24
"""The largest float32 below 1."""


def is_sampled(params: SamplingParams) -> bool:
    """False for greedy, and for a temperature that leaves nothing but the likeliest token."""
    return params.temperature >= COLDEST


def above_zero(value: float) -> float:
    """The value, or the least number above 0 that float32 has."""
    return max(value, _LEAST)


def below_one(value: float) -> float:
    """The value, or the largest number below 1 that float32 has."""
    return min(value, _BELOW_ONE)


def cut(top_k: int, vocab_size: int) -> int:
    """How many of the likeliest tokens are kept; 0, for all, where that is as many as there are."""
    return top_k if top_k < vocab_size else 0
