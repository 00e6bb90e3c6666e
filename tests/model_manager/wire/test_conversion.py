"""What does not fit is told in our words: the setting, what it got, what it takes."""

from typing import Any, Literal

import msgspec
import pytest

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.conversion import converted, did_you_mean, shown
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest
from millrace.model_manager.wire.sampling import SamplingParams, nearest_parameter


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": "5"}, "max_tokens='5': takes an integer"),
        ({"temperature": "hot"}, "temperature='hot': takes a number"),
        ({"ignore_eos": 1}, "ignore_eos=1: takes true or false"),
        ({"stop": 3}, "stop=3: takes a list of strings"),
        ({"max_tokens": "5\ud800"}, "max_tokens='5\\ud800': takes an integer"),
        ({"constraint": {"choice": "a\ud800"}}, "constraint: choice='a\\ud800': takes a list of strings"),
        ({"stop_token_ids": [1, "x"]}, "stop_token_ids=[1, 'x']: takes a list of integers"),
        (
            {"logit_bias": {"3": "x"}},
            "logit_bias={'3': 'x'}: takes an object with integers as names and numbers as values",
        ),
        ({"max_token": 5}, "unknown sampling parameter 'max_token': did you mean max_tokens?"),
        ({"max_new_tokens": 5}, "unknown sampling parameter 'max_new_tokens': did you mean max_tokens?"),
    ],
)
def test_a_parameter_that_does_not_fit_is_named_with_what_it_takes(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        SamplingParams.parse({"seed": 1} | fields)
    assert str(raised.value) == told


def test_a_parameter_like_no_other_is_told_all_that_there_are() -> None:
    with pytest.raises(InvalidRequest, match="unknown sampling parameter 'colour': takes max_tokens, min_tokens, "):
        SamplingParams.parse({"colour": 1})


@pytest.mark.parametrize(
    ("meant", "otherwise", "told"),
    [("stop", "takes a, b", ": did you mean stop?"), (None, "takes a, b", ": takes a, b"), (None, "", "")],
)
def test_an_error_ends_with_the_name_that_was_meant_or_with_what_to_do(
    meant: str | None, otherwise: str, told: str
) -> None:
    assert did_you_mean(meant, otherwise) == told


class Settings(msgspec.Struct):
    rank: int
    kind: Literal["plain"] = "plain"
    targets: list[str] | str | None = None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "rank is missing: takes an integer"),
        ({"rank": 1, "kind": "x"}, "kind='x': takes 'plain'"),
        ({"rank": 1, "targets": [3]}, "targets=[3]: takes a list of strings or a string"),
    ],
)
def test_so_is_what_is_missing_and_what_has_several_types(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        converted(fields, Settings, ConfigError, what="setting")
    assert str(raised.value) == told


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(InvalidRequest) as raised:
        SamplingParams.parse({"max_tokens": "x" * 10_000})
    assert len(str(raised.value)) < 150


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_num_seqs": "x"}, "max_num_seqs='x': takes an integer"),
        ({"dtype": "int3"}, "dtype='int3': takes one of auto, bfloat16, float16, float32"),
        ({"quantisation": "int8"}, "unknown setting of ModelConfig 'quantisation': did you mean quantization?"),
    ],
)
def test_so_is_a_setting(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ModelConfig.parse(fields)
    assert str(raised.value) == told


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("maxTokens", "max_tokens"),
        ("top-p", "top_p"),
        ("Seed", "seed"),
        ("max_completion_tokens", "max_tokens"),
        ("temp", "temperature"),
    ],
)
def test_a_name_near_a_parameter_is_taken_for_it(name: str, meant: str) -> None:
    assert nearest_parameter(name) == meant


@pytest.mark.parametrize("name", ["customer", "label", "model", "metadata", "store", "step", "text", "source", "url"])
def test_usual_columns_are_near_none(name: str) -> None:
    assert nearest_parameter(name) is None


@pytest.mark.parametrize(
    "value",
    [
        "x" * 200,
        "it's " * 50,
        ["ab", 1, None] * 50,
        {"a": [1, 2], "b": {"c": "d" * 100}},
        [[[]]],
        (1, "a"),
        {},
        5,
        b"a",
    ],
)
def test_a_value_is_shown_as_its_repr_begins(value: Any) -> None:
    whole = repr(value)
    assert shown(value) == (whole if len(whole) <= 80 else whole[:79] + "…")


def test_a_value_of_any_depth_is_shown() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "[" * 79 + "…"
