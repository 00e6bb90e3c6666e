"""Counts of answered requests, in the form of Prometheus's histograms: what they took, their sizes, what ended them.

The manager counts the requests of each model, and a server its HTTP requests; the status carries the former. Knows no
request and no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import msgspec

from .request import FinishReason

_TO_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_OF_REQUEST = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2),
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
BOUNDS: dict[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": _TO_FIRST,
    "inter_token_latency_seconds": _BETWEEN,
    "request_time_per_output_token_seconds": _BETWEEN,
    "e2e_request_latency_seconds": _OF_REQUEST,
    "request_queue_time_seconds": _OF_REQUEST,
    "request_prefill_time_seconds": _OF_REQUEST,
    "request_decode_time_seconds": _OF_REQUEST,
    "request_inference_time_seconds": _OF_REQUEST,
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
}
"""The largest value of each bucket, ascending, by histogram; a last bucket takes all larger values. The names and
bounds are vLLM's; below its smallest bound are further ones here, for models that take less than 10 ms a token.
"""


class Histogram(msgspec.Struct, frozen=True):
    """Observations of one value."""

    counts: list[int]
    """Observations in each bucket, those in smaller buckets not included."""
    total: float
    """Sum of all values."""


class RequestCounts(msgspec.Struct, frozen=True):
    """What the answered requests of a model came to."""

    answers: dict[str, int] = {}
    """Answers, by what ended them: stop, length or deadline."""
    histograms: dict[str, Histogram] = {}
    """Their times and sizes, by the names that Prometheus has for them."""


class RequestCounter:
    """Counts requests; whoever uses it from several threads has a lock. The manager counts thousands a second, so each
    value is counted in place: a call for each would take twice as long.
    """

    def __init__(self) -> None:
        self._answers = Counter[FinishReason]()
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in BOUNDS.items()}
        self._to_first = self._counts["time_to_first_token_seconds"]
        self._between = self._counts["inter_token_latency_seconds"]
        self._mean_between = self._counts["request_time_per_output_token_seconds"]
        self._latency = self._counts["e2e_request_latency_seconds"]
        self._queued = self._counts["request_queue_time_seconds"]
        self._prefill = self._counts["request_prefill_time_seconds"]
        self._decode = self._counts["request_decode_time_seconds"]
        self._inference = self._counts["request_inference_time_seconds"]
        self._prompt = self._counts["request_prompt_tokens"]
        self._generated = self._counts["request_generation_tokens"]
        self._totals = dict.fromkeys(BOUNDS, 0.0)

    def request(self, latency: float, to_first: float | None, prompt_tokens: int, generated_tokens: int) -> None:
        """Count a request. `to_first`: seconds to its first token; None if it generated none."""
        totals = self._totals
        self._latency[bisect_left(_OF_REQUEST, latency)] += 1
        totals["e2e_request_latency_seconds"] += latency
        self._prompt[bisect_left(_TOKENS, prompt_tokens)] += 1
        totals["request_prompt_tokens"] += prompt_tokens
        self._generated[bisect_left(_TOKENS, generated_tokens)] += 1
        totals["request_generation_tokens"] += generated_tokens
        if to_first is not None:
            self._to_first[bisect_left(_TO_FIRST, to_first)] += 1
            totals["time_to_first_token_seconds"] += to_first

    def answer(self, reason: FinishReason, queued: float, prefill: float, decode: float, gaps: int) -> None:
        """Count one answer to a request, by its seconds in each phase. `gaps`: how many tokens were generated after the
        first in the seconds of `decode`; 0 if it is not known, as of an answer that went on in another engine.
        """
        totals, inference = self._totals, prefill + decode
        self._answers[reason] += 1
        self._queued[bisect_left(_OF_REQUEST, queued)] += 1
        totals["request_queue_time_seconds"] += queued
        self._prefill[bisect_left(_OF_REQUEST, prefill)] += 1
        totals["request_prefill_time_seconds"] += prefill
        self._decode[bisect_left(_OF_REQUEST, decode)] += 1
        totals["request_decode_time_seconds"] += decode
        self._inference[bisect_left(_OF_REQUEST, inference)] += 1
        totals["request_inference_time_seconds"] += inference
        if gaps > 0:
            bucket = bisect_left(_BETWEEN, decode / gaps)
            self._between[bucket] += gaps
            totals["inter_token_latency_seconds"] += decode
            self._mean_between[bucket] += 1
            totals["request_time_per_output_token_seconds"] += decode / gaps

    def counts(self) -> RequestCounts:
        """All of it now."""
        histograms = {name: Histogram([*counts], self._totals[name]) for name, counts in self._counts.items()}
        return RequestCounts({reason.value: count for reason, count in self._answers.items()}, histograms)
