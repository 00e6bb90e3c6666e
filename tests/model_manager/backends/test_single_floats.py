"""Parameters at the ends of their ranges, which libraries of 32 bits would refuse in words of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millrace.model_manager.backends.single_floats import above_zero, below_one, cut
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.test_parameters import libraries, of_ctranslate2, of_llama_cpp, of_openvino

__all__ = ["libraries"]
"""The fixture that stands in for the libraries."""


def params(**fields: Any) -> SamplingParams:
    return SamplingParams.parse({"max_tokens": 20, **fields})


def test_numbers_stay_what_they_are_where_32_bits_hold_them() -> None:
    assert (above_zero(0.5), below_one(0.5), cut(5, 100)) == (0.5, 0.5, 5)
    assert np.float32(above_zero(1e-300)) > 0
    assert np.float32(below_one(1.0)) < 1
    assert (cut(2**31, 100), cut(100, 100), cut(0, 100)) == (0, 0, 0)


@pytest.mark.parametrize("build", [of_openvino, of_ctranslate2])
def test_a_temperature_that_leaves_one_token_is_greedy(build: Any) -> None:
    assert build(params(temperature=1e-300)) == build(params(temperature=0.0))
    assert build(params(temperature=1e-3)) != build(params(temperature=0.0))


@pytest.mark.parametrize("build", [of_openvino, of_ctranslate2])
def test_more_likeliest_tokens_than_there_are_is_all_of_them(build: Any) -> None:
    assert build(params(temperature=1.0, top_k=2**31)) == build(params(temperature=1.0))


def test_openvino_gets_shares_within_its_own_ranges() -> None:
    ((_, config), _), *_ = of_openvino(params(temperature=1.0, min_p=1.0, top_p=1e-300, repetition_penalty=1e-300))
    assert np.float32(config.min_p) < 1
    assert np.float32(config.top_p) > 0
    assert np.float32(config.repetition_penalty) > 0


def test_llama_cpp_gets_integers_of_32_bits() -> None:
    body = of_llama_cpp(params(temperature=1.0, top_k=2**32 + 1, max_tokens=2**40))
    assert (body["top_k"], body["n_predict"]) == (2**31 - 1, 64)
