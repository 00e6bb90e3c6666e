"""Histograms against the library's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Theirs
from prometheus_client.metrics_core import Metric

from millrace.model_manager.wire.request import FinishReason
from millrace.model_manager.wire.request_counts import BOUNDS, RequestCounter
from millrace.serving.metrics.request_families import request_families

SECONDS = st.sampled_from([0.0, 0.0005, 0.01, 0.0100001, 0.3, 2.0, 80.0, 1e5]) | st.floats(0, 1e4)


def made(family: Metric) -> dict[tuple[Any, ...], float]:
    """Its samples, by name and labels."""
    samples = (each for each in family.samples if not each.name.endswith("_created"))
    return {(each.name, *sorted(each.labels.items())): each.value for each in samples}


@given(st.lists(st.tuples(st.sampled_from("ab"), SECONDS, SECONDS, st.integers(0, 9)), max_size=20))
def test_what_is_counted_is_as_if_the_library_had_counted_each_value(seen: list[tuple[str, float, float, int]]) -> None:
    ours = {"a": RequestCounter(), "b": RequestCounter()}
    registry = CollectorRegistry()
    theirs = {name: Theirs(f"p:{name}", "-", ["of"], buckets=BOUNDS[name], registry=registry) for name in BOUNDS}
    for each in theirs.values():
        each.labels("a"), each.labels("b")
    for of, first, decode, tokens in seen:
        ours[of].request(first + decode, first if tokens else None, 3, tokens)
        ours[of].answer(FinishReason.STOP, first / 2, first / 2, decode, tokens - 1)
        once = {
            "e2e_request_latency_seconds": first + decode,
            "request_queue_time_seconds": first / 2,
            "request_prefill_time_seconds": first / 2,
            "request_decode_time_seconds": decode,
            "request_inference_time_seconds": first / 2 + decode,
            "request_prompt_tokens": 3,
            "request_generation_tokens": tokens,
        }
        if tokens:
            once["time_to_first_token_seconds"] = first
        if tokens > 1:
            once["request_time_per_output_token_seconds"] = decode / (tokens - 1)
        for name, value in once.items():
            theirs[name].labels(of).observe(value)
        for _ in range(tokens - 1):
            theirs["inter_token_latency_seconds"].labels(of).observe(decode / (tokens - 1))
    found = {
        family.name: family for family in request_families("p:", ["of"], [((of,), ours[of].counts()) for of in ours])
    }
    for name, each in theirs.items():
        (expected,) = each.collect()
        assert made(found[f"p:{name}"]) == pytest.approx(made(expected))
    answers = {each.labels["of"]: each.value for each in found["p:request_success"].samples}
    assert answers == {of: sum(each[0] == of for each in seen) for of in {each[0] for each in seen}}


def test_bounds_are_vllms_and_finer_ones_below_its_smallest() -> None:
    """The bounds are those in vllm/v1/metrics/loggers.py of vLLM 0.11."""
    between = [
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.4,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
        7.5,
        10.0,
        20.0,
        40.0,
        80.0,
    ]
    to_first = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
    of_request = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0]
    theirs = {
        "time_to_first_token_seconds": [*to_first, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0],
        "inter_token_latency_seconds": between,
        "request_time_per_output_token_seconds": between,
        "e2e_request_latency_seconds": [*of_request, 960.0, 1920.0, 7680.0],
        "request_queue_time_seconds": [*of_request, 960.0, 1920.0, 7680.0],
        "request_prefill_time_seconds": [*of_request, 960.0, 1920.0, 7680.0],
        "request_decode_time_seconds": [*of_request, 960.0, 1920.0, 7680.0],
        "request_inference_time_seconds": [*of_request, 960.0, 1920.0, 7680.0],
    }
    for name, bounds in theirs.items():
        assert [bound for bound in BOUNDS[name] if bound >= bounds[0]] == bounds
    assert all(list(bounds) == sorted(set(bounds)) for bounds in BOUNDS.values())
