"""Constraint: exactly one kind, of JSON, within its bounds; what is wrong is told by name."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given

from model_manager.wire.constraint import DEEPEST_SCHEMA, MOST_REGEX_CHARACTERS, Constraint
from model_manager.wire.errors import InvalidRequest
from model_manager.wire.sampling import SamplingParams
from tests.model_manager.wire.instances import CONSTRAINTS

VALID: list[dict[str, Any]] = [
    {"regex": r"\d{4}-\d\d-\d\d"},
    {"regex": ""},
    {"json_schema": {"type": "object", "properties": {"b": True, "a": {"const": 1.5}}}},
    {"json_schema": True},
    {"json_schema": False},
    {"json": True},
    {"grammar": 'start: "a"'},
    {"choice": ("yes", "no")},
]


@pytest.mark.parametrize("fields", VALID, ids=str)
def test_a_row_says_one_kind(fields: dict[str, Any]) -> None:
    constraint = SamplingParams.parse({"constraint": fields}).constraint
    assert constraint == Constraint(**fields)
    assert constraint.kind == next(iter(fields))


@given(CONSTRAINTS)
def test_messages_and_rows_give_the_same_constraint(constraint: Constraint) -> None:
    params = SamplingParams(constraint=constraint)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert SamplingParams.parse(msgspec.json.decode(msgspec.json.encode(params))) == params


def test_the_order_of_a_schemas_keys_tells_constraints_apart() -> None:
    one = Constraint(json_schema={"properties": {"a": True, "b": True}})
    other = Constraint(json_schema={"properties": {"b": True, "a": True}})
    assert one.key() != other.key()


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


INVALID: list[tuple[Any, str]] = [
    ({}, "takes one of regex, json_schema, json, grammar, choice, got none"),
    ({"json": False}, "got none"),
    ({"regex": None}, "got none"),
    ({"regex": "a", "json": True}, "got regex, json"),
    ({"regex": 1}, "constraint: regex=1: takes a string"),
    ({"pattern": "a"}, "did you mean regex"),
    ({"grammer": "a"}, "did you mean grammar"),
    ({"json_schema": []}, "takes an object"),
    ({"choice": "a"}, "takes a list of strings"),
    ({"choice": []}, "takes 1 to"),
    ({"choice": ["a", "a"]}, "got one twice"),
    ({"choice": [""]}, "1 or more characters"),
    ({"choice": ["\ud800"]}, "UTF-8"),
    ({"choice": ["a"] * 10_001}, "got 10001"),
    ({"grammar": " \n"}, "got nothing"),
    ({"grammar": "a" * (2**21 + 1)}, "characters"),
    ({"regex": "a" * (MOST_REGEX_CHARACTERS + 1)}, "characters"),
    ({"regex": "\ud800"}, "surrogate"),
    ({"json_schema": _deep(DEEPEST_SCHEMA + 1)}, "levels"),
    ({"json_schema": _deep(10_000)}, "levels"),
    ({"json_schema": {"enum": list(range(100_001))}}, "values"),
    ({"json_schema": {"const": "a" * (2**21 + 1)}}, "characters"),
    ({"json_schema": {"maximum": 2**64}}, "64 bits"),
    ({"json_schema": {"maximum": math.nan}}, "finite"),
    ({"json_schema": {"const": "\ud800"}}, "surrogate"),
    ({"json_schema": {"const": b"a"}}, "takes JSON"),
    ("a", "takes an object with regex, json_schema, json, grammar, choice"),
]


@pytest.mark.parametrize(("fields", "said"), INVALID, ids=[str(index) for index in range(len(INVALID))])
def test_what_is_wrong_is_refused_by_name(fields: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^constraint") as refused:
        SamplingParams.parse({"constraint": fields})
    assert said in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_schema_may_be_as_deep_as_is_said() -> None:
    assert Constraint(json_schema=_deep(DEEPEST_SCHEMA)).kind == "json_schema"
