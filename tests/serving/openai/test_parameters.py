"""Sampling parameters of a request that somebody waits for."""

from __future__ import annotations

import pytest

from millrace.model_manager.wire.sampling import SamplingParams
from millrace.serving.openai.parameters import INTERACTIVE, sampling


@pytest.mark.parametrize(
    ("own", "priority"), [(0, 0), (7, 7), (-7, -7), (2**31 - 1, 999), (-(2**31), -999), (5000, 999)]
)
def test_a_request_runs_before_rows_of_jobs_whatever_its_own_priority(own: int, priority: int) -> None:
    found = sampling({"priority": own}, max_tokens=5).priority
    assert found == INTERACTIVE + priority
    assert found < SamplingParams().priority


def test_defaults_are_those_of_openai() -> None:
    found = sampling({}, max_tokens=16)
    assert (found.temperature, found.max_tokens, found.top_p) == (1.0, 16, 1.0)
    assert sampling({"max_tokens": 3, "max_completion_tokens": 4, "temperature": 0}, max_tokens=16).max_tokens == 4
