"""Sampling parameters of a request that somebody waits for."""

from __future__ import annotations

import pytest

from millrace.model_manager.wire.errors import InvalidRequest
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


@pytest.mark.parametrize(("seed", "ours"), [(7, 7), (-1, 2**63 - 1), (-(2**63), 0), (2**63 - 1, 2**63 - 1)])
def test_a_seed_is_any_integer_of_64_bits(seed: int, ours: int) -> None:
    assert sampling({"seed": seed}, max_tokens=5).seed == ours


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1])
def test_the_error_of_a_seed_says_the_range_that_is_taken(seed: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^seed=-?\d+: takes -2\*\*63 to 2\*\*63 - 1$"):
        sampling({"seed": seed}, max_tokens=5)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, True, -1.5, "-1"])
def test_a_seed_of_another_kind_is_refused(seed: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^seed="):
        sampling({"seed": seed}, max_tokens=5)


def test_what_was_taken_before_does_not_let_another_type_pass() -> None:
    assert sampling({"n": 1, "top_k": 1}, max_tokens=5) is sampling({"n": 1, "top_k": 1}, max_tokens=5)
    for wrong in (True, 1.0, "1"):
        with pytest.raises(InvalidRequest, match="n="):
            sampling({"n": wrong, "top_k": 1}, max_tokens=5)
    assert sampling({"n": 1, "top_k": 2}, max_tokens=5).top_k == 2
    assert sampling({"stop": ["a"]}, max_tokens=5).stop == ("a",)
