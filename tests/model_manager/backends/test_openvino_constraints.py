"""The constraints that OpenVINO gets, and the outputs that are taken from it. Its own part is in test_openvino.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.model_manager.backends.openvino_constraints import meets, structured
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest

GENAI = SimpleNamespace(StructuredOutputConfig=SimpleNamespace)
ANSWER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40, "description": "Whose"},
        "kind": {"enum": ["a b", 3, None, "é"]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 130}, "maxItems": 4},
        "next": {"anyOf": [{"$ref": "#/$defs/Part"}, {"type": "null"}]},
        "code": {"type": ["string", "null"], "pattern": "[A-Z]{2}-\\d+"},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
    "$defs": {"Part": {"type": "object", "properties": {"x": {"type": "number"}}}},
}


def of(**fields: Any) -> Constraint:
    return Constraint.parse(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": ANSWER},
        {"json": True},
        {"choice": ["yes", "no", 'with "quotes"', "好"]},
        *({"regex": each} for each in ("[ab]{3}", "(?:yes|no)", r"\d{4}-\d{2}", "a(b|c)*d", r"\[[\w.]+\]", "#x y")),
    ],
    ids=str,
)
def test_plain_constraints_are_handed_on(fields: dict[str, Any]) -> None:
    (given,) = vars(structured(GENAI, of(**fields))).values()
    assert isinstance(given, str)


@pytest.mark.parametrize(
    "regex",
    [
        *("a|", "(|a)b", "(?i)abc", "(?s).{3}", "(?P<n>ab)+", "[]a]{2}", r"\p{L}+", "a.b", "[^a]", "^a$", "a+?", "a++"),
        *("(a", "a)", "", "*a", "a{1001}", "\x00", "é", "[[:alpha:]]{2}", r"a\b", "(?=a)a"),
    ],
)
def test_a_regular_expression_that_openvino_reads_wrongly_or_dies_of_is_refused(regex: str) -> None:
    constraint = Constraint(regex=regex)
    with pytest.raises(
        InvalidRequest, match=r"^constraint\.regex: OpenVINO does not hold .*; the back end torch does$"
    ):
        structured(GENAI, constraint)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "number", "minimum": 0.5}, "minimum=0.5"),
        ({"allOf": [{"type": "integer"}]}, "the keyword allOf"),
        ({"type": "integer", "multipleOf": 7}, "the keyword multipleOf"),
        ({"type": "object", "properties": {'é"': {"type": "null"}}}, "the name 'é\"'"),
        ({"type": "string", "pattern": r"\p{L}"}, "pattern: "),
        ({"type": "array", "items": {"const": 0}, "minItems": 10**9}, "minItems=1000000000"),
        ({"const": 'a"b'}, "const='a\"b'"),
        ({"type": "object", "additionalProperties": {"type": "null"}}, "additionalProperties with a schema"),
        ({"$ref": "https://example.com/x"}, "$ref='https://example.com/x'"),
        ({"anyOf": [True]}, "the schema True"),
    ],
    ids=str,
)
def test_a_schema_is_refused_by_the_part_that_is_not_held(schema: dict[str, Any], named: str) -> None:
    for whole in (schema, {"type": "array", "items": schema}):
        with pytest.raises(InvalidRequest) as refused:
            structured(GENAI, Constraint(json_schema=whole))
        assert f"constraint.json_schema: OpenVINO does not hold {named}" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "output", "met"),
    [
        ({"regex": "[ab]{3}"}, b"aba", True),
        ({"regex": "[ab]{3}"}, b"b", False),
        ({"choice": ["yes", "no"]}, b"ye", False),
        ({"json_schema": {"type": "integer", "maximum": 9}}, b"-8", True),
        ({"json_schema": {"type": "integer", "maximum": 9}}, b"96", False),
        ({"json_schema": {"type": "integer", "maximum": 9}}, b"0a7", False),
        ({"json_schema": {"type": "array", "items": {"type": "null"}}}, b"[ null ,\n null]", True),
        ({"json_schema": {"type": "array", "items": {"type": "null"}}}, b"\xff", False),
        ({"json": True}, b'{"a": [1, 2.50]}', True),
        ({"json": True}, b'{"a": [1, 2.50]', False),
    ],
)
def test_an_output_is_looked_at_whole(fields: dict[str, Any], output: bytes, met: bool) -> None:
    assert meets(of(**fields), output) is met
