"""SamplingParams: what is out of range is refused by name."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given

from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.wire.instances import of_type


@given(of_type(SamplingParams))
def test_rows_of_json_and_messages_give_the_same_parameters(params: SamplingParams) -> None:
    row = msgspec.json.decode(msgspec.json.encode(params))
    assert SamplingParams.parse(row) == params
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_each_parameter_is_in_its_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "sampling.md").read_text()
    assert [name for name in SamplingParams.__struct_fields__ if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", "4"),
        ("max_tokens", 4.5),
        ("temperature", "hot"),
        ("stop", "END"),
        ("ignore_eos", "yes"),
        ("logit_bias", {"a": 1.0}),
        ("constraint", "a|b"),
    ],
)
def test_the_constructor_refuses_a_value_of_another_type(name: str, value: Any) -> None:
    """Its letters would be the stop strings, and a process further on would find the number."""
    with pytest.raises(InvalidRequest, match=f"^{name}{':' if name == 'constraint' else '=.*:'} takes "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "own"),
    [
        ("constraint", {"regex": "a|b"}, Constraint(regex="a|b")),
        ("constraint", '{"choice": ["a", "b"]}', Constraint(choice=("a", "b"))),
        ("constraint", {"json": True}, Constraint(json=True)),
        ("stop", ["a", "b"], ("a", "b")),
        ("logit_bias", {"5": 1}, {5: 1.0}),
    ],
)
def test_the_constructor_makes_of_plain_values_what_a_row_of_them_gives(name: str, value: Any, own: Any) -> None:
    made: Any = SamplingParams(**{name: value})
    assert made == SamplingParams.parse({name: value}) == SamplingParams(**{name: own})
    assert type(getattr(made, name)) is type(own)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"regx": "a"}, "constraint: unknown kind 'regx': did you mean regex?"),
        ({"regex": 5}, "constraint: regex=5: takes a string"),
        ({}, "constraint: takes one of regex, json_schema, json, grammar, choice, got none"),
        ({"type": "object"}, 'constraint: takes a JSON Schema as {"json_schema": {…}}, got one by itself'),
        (5, "constraint=5: takes an object with regex, json_schema, json, grammar, choice"),
    ],
)
def test_the_constructor_says_what_is_wrong_within_a_constraint(value: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        SamplingParams(constraint=value)
    assert str(raised.value) == told


def test_names_may_be_of_a_class_of_strings() -> None:
    class Name(str):
        __slots__ = ()

    assert SamplingParams.parse({Name("max_tokens"): 3}) == SamplingParams(max_tokens=3)
    given: Any = {Name("regex"): "a"}
    assert SamplingParams(constraint=given).constraint == Constraint(regex="a")


def test_a_token_twice_is_refused() -> None:
    given: Any = {"5": 1, 5: 2}
    with pytest.raises(InvalidRequest, match=r"logit_bias=.*: takes each token once"):
        SamplingParams(logit_bias=given)
    with pytest.raises(InvalidRequest, match=r"logit_bias=.*: takes each token once; 5 is there twice"):
        SamplingParams.parse({"logit_bias": given})


INVALID = [
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("temperature", -0.1),
    ("temperature", 100.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_p", math.nan),
    ("n", 0),
    ("n", 65),
    ("seed", -1),
    ("seed", 2**63),
    ("stop", ("",)),
    ("stop", ("x" * 257,)),
    ("stop", ("x",) * 17),
    ("stop", ("\ud800",)),
    ("stop_token_ids", (-1,)),
    ("priority", 2**31),
    ("deadline", 0.0),
    ("deadline", math.inf),
    ("deadline", math.nan),
    ("cache_salt", "x" * 257),
    ("adapter", "x" * 4097),
    ("cache_salt", "\ud800"),
    ("adapter", "\ud800"),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 21),
    ("min_tokens", -1),
    ("min_tokens", 129),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("min_p", math.nan),
    ("typical_p", 0.0),
    ("typical_p", 1.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", math.inf),
    ("presence_penalty", -2.1),
    ("presence_penalty", math.nan),
    ("frequency_penalty", 2.1),
    ("logit_bias", {5: 100.5}),
    ("logit_bias", {5: math.nan}),
    ("logit_bias", {-1: 1.0}),
    ("allowed_token_ids", ()),
    ("allowed_token_ids", (3, -1)),
    ("bad_words", ("",)),
    ("bad_words", (" ",)),
    ("bad_words", ("x" * 257,)),
    ("bad_words", ("\ud800",)),
    ("logprobs", -1),
    ("logprobs", 21),
    *((name, 10**30) for name in ("max_tokens", "min_tokens", "top_k", "n", "seed", "priority", "logprobs")),
    *((name, 2**63) for name in ("max_tokens", "top_k")),
    *((name, (5, 2**64)) for name in ("stop_token_ids", "allowed_token_ids")),
    ("logit_bias", {2**64: 1.0}),
    ("bad_words", ("x",) * 1001),
    ("bad_words", ("x" * 256,) * 129),
    ("stop_token_ids", (5,) * 1001),
    ("allowed_token_ids", (5,) * (2**18 + 1)),
    ("logit_bias", dict.fromkeys(range(2**18 + 1), 1.0)),
]


@pytest.mark.parametrize(("name", "value"), INVALID)
def test_an_impossible_value_is_refused_by_name_however_it_comes(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"^{name}=.*: takes "):
        SamplingParams(**{name: value})
    with pytest.raises(InvalidRequest, match=f"^{name}=.*: takes "):
        SamplingParams.parse({name: value})


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**63, 2**64, 10**30])
@pytest.mark.parametrize("name", SamplingParams.__struct_fields__)
def test_a_parameter_with_any_integer_in_it_is_refused_or_can_be_sent(name: str, number: int) -> None:
    for value in (number, [number], {str(number): 1.0}):
        try:
            params = SamplingParams.parse({name: value})
        except InvalidRequest as error:
            assert str(error).startswith(name)  # noqa: PT017 - a value that is taken raises nothing
        else:
            msgspec.msgpack.encode(params)


WRONG_TYPE = [
    ("max_tokens", "5"),
    ("max_tokens", 5.5),
    ("temperature", "hot"),
    ("top_k", True),
    ("seed", 1.5),
    ("stop", 5),
    ("stop", [5]),
    ("stop_token_ids", ["5"]),
    ("ignore_eos", "yes"),
    ("priority", "high"),
    ("deadline", "soon"),
    ("cache_salt", 5),
    ("adapter", 5),
    ("include_stop_str_in_output", 1),
    ("logit_bias", [1]),
    ("logit_bias", {"x": 1.0}),
    ("logit_bias", {"5": "much"}),
    ("logprobs", True),
    ("bad_words", 5),
    ("constraint", "json"),
]


@pytest.mark.parametrize(("name", "value"), WRONG_TYPE)
def test_a_wrong_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{name}[=:].* ?takes "):
        SamplingParams.parse({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bad_words", ("x",) * 1000),
        ("bad_words", ("x" * 256,) * 128),
        ("stop_token_ids", tuple(range(1000))),
        ("allowed_token_ids", tuple(range(2**18))),
        ("logit_bias", dict.fromkeys(range(2**18), 1.0)),
        ("stop", ("x" * 256,) * 16),
    ],
)
def test_a_list_has_as_many_as_it_may(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_an_unknown_name_is_listed() -> None:
    with pytest.raises(InvalidRequest, match="'max_token': did you mean max_tokens"):
        SamplingParams.parse({"max_token": 5})


def test_every_parameter_has_a_case_of_an_invalid_value() -> None:
    tested = {name for name, _ in INVALID + WRONG_TYPE}
    assert tested == set(SamplingParams.__struct_fields__)


def test_null_is_as_if_absent_and_a_lone_stop_string_is_one() -> None:
    assert SamplingParams.parse({"seed": None, "stop": "\n", "top_p": 1}) == SamplingParams(stop=("\n",))
    assert SamplingParams.parse({"bad_words": "no"}) == SamplingParams(bad_words=("no",))


def test_token_ids_with_a_bias_are_keys_of_json_or_numbers() -> None:
    expected = SamplingParams(logit_bias={5: 1.0, 7: -100.0})
    assert SamplingParams.parse({"logit_bias": {"5": 1, "7": -100}}) == expected
    assert SamplingParams.parse({"logit_bias": {5: 1, 7: -100}}) == expected
    assert expected.updated({"logit_bias": {"9": 2}}) == SamplingParams(logit_bias={9: 2.0})


def test_a_rows_own_parameters_go_on_top() -> None:
    params = SamplingParams(max_tokens=5, stop=("a",))
    assert params.updated({}) is params
    assert params.updated({"stop": "b", "seed": 1}) == SamplingParams(max_tokens=5, stop=("b",), seed=1)
    with pytest.raises(InvalidRequest, match="top_k"):
        params.updated({"top_k": -1})


@pytest.mark.parametrize("name", ["max_tokens", "top_k", "stop_token_ids"])
def test_an_invalid_value_does_not_pass_a_message_either(name: str) -> None:
    body = msgspec.msgpack.encode({name: [-1] if name == "stop_token_ids" else -1})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(body, type=SamplingParams)
