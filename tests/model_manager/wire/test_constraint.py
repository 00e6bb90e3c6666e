"""Constraint: exactly one kind, of JSON, within its bounds; what is wrong is told by name."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given

from millrace.model_manager.wire.constraint import DEEPEST_SCHEMA, MOST_REGEX_CHARACTERS, Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.sampling import SamplingParams
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


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"choice": "abc"}, "constraint: choice='abc': takes a list of strings"),
        ({"json": "yes"}, "constraint: json='yes': takes true or false"),
        ({"regex": 5}, "constraint: regex=5: takes a string"),
        ({"regex": b"[0-9]"}, "constraint: regex=b'[0-9]': takes a string"),
    ],
    ids=str,
)
def test_a_constraint_that_a_program_makes_is_checked_as_a_rows(fields: dict[str, Any], told: str) -> None:
    """An engine would refuse the message, whatever else is in it."""
    with pytest.raises(InvalidRequest) as raised:
        Constraint(**fields)
    assert str(raised.value) == told


def test_a_program_may_give_a_list_and_is_told_what_it_meant() -> None:
    listed: Any = ["b", "a"]
    assert hash(Constraint(choice=listed)) == hash(Constraint(choice=("b", "a")))
    wrong: Any = {"regx": "a"}
    with pytest.raises(TypeError, match="did you mean regex"):
        Constraint(**wrong)


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


SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "const": None}}}
OTHER_FORMS: list[Any] = [
    {"json_schema": SCHEMA},
    {"json_schema": json.dumps(SCHEMA)},
    json.dumps({"json_schema": SCHEMA}),
    "\ufeff " + json.dumps({"json_schema": json.dumps(SCHEMA)}),
    {"json_schema": {"name": "a", "schema": SCHEMA}},
    {"json_schema": {"name": "a", "strict": True, "description": "b", "schema": SCHEMA}},
    {"json_schema": {"schema": json.dumps(SCHEMA), "strict": None}},
    {"json_schema": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"json_schema": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    {"regex": None, "json_schema": SCHEMA},
]


@pytest.mark.parametrize("given", OTHER_FORMS, ids=str)
def test_a_schema_is_the_same_as_an_object_as_a_text_and_in_openais_wrapper(given: Any) -> None:
    assert SamplingParams.parse({"constraint": given}).constraint == Constraint(json_schema=SCHEMA)


@pytest.mark.parametrize(
    "schema",
    [
        {"name": "a", "schema": {}, "type": "object"},
        {"schema": {}, "properties": {}},
        {"properties": {"name": {}, "schema": {}, "strict": {}}},
        {"type": "object", "title": "json_schema"},
    ],
    ids=str,
)
def test_what_only_looks_like_openais_wrapper_is_a_schema(schema: Any) -> None:
    assert Constraint(json_schema=schema).json_schema == schema


TEXTS = {
    "": "takes an object with regex, json_schema, json, grammar, choice, or its JSON, got ''",
    json.dumps(json.dumps({"regex": "a"})): "or its JSON, got '\"{",
    '{"regex": "a"': "constraint: takes JSON: Expecting ',' delimiter (line 1, column 14)",
    '{"regex": "a",\n "regex": "b"}': "constraint: takes JSON: the key 'regex' is twice in an object",
    '{"json_schema": {"maximum": NaN}}': "constraint: takes JSON: NaN is no number of JSON",
    '{"json_schema": {"maximum": 1e999}}': "finite",
    '{"json_schema": {"maximum": ' + "9" * 5000 + "}}": "constraint: takes JSON: Exceeds the limit (4300 digits)",
    '{"json_schema": ' + "[" * 100_000: "constraint: takes JSON: it is nested too deeply",
    '{"json_schema": "{"}': "constraint.json_schema: takes JSON: Expecting property name",
    '{"json_schema": ""}': "constraint.json_schema: takes JSON: it is empty",
    '{"json_schema": "[]"}': "json_schema=[]: takes an object with strings as names",
    '{"json_schema": {"name": "a", "schema": 5}}': "constraint.json_schema.schema: takes an object, true or false",
    '{"type": "object", "properties": {}}': 'takes a JSON Schema as {"json_schema": {…}}, got one by itself',
    '{"type": "json_object"}': "unknown kind 'type'",
}
WRONG = [*INVALID, *TEXTS.items()]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=[str(index) for index in range(len(WRONG))])
def test_what_is_wrong_is_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^constraint") as refused:
        SamplingParams.parse({"constraint": given})
    assert said in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_schema_may_be_as_deep_as_is_said() -> None:
    assert Constraint(json_schema=_deep(DEEPEST_SCHEMA)).kind == "json_schema"
