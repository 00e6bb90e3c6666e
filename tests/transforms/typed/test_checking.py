"""Errors that the engine would raise with the first document are raised before, as a sentence that names the field."""

import json
from typing import Any

import pytest

from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.typed.answer_values import read
from millrace.transforms.typed.checking import check_supported
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.record_grammar import RecordGrammar
from millrace.transforms.typed.shapes import Schema
from tests.transforms.constrained_client import compiler
from tests.transforms.typed.test_record_grammar import sentence

MANY = [f"f{at}" for at in range(420)]
CHAIN = {"$defs": {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(3000)} | {"d3000": {"type": "integer"}}}


def schema(properties: dict[str, Any], required: list[str] | None = None) -> Schema:
    return {"type": "object", "properties": properties, "required": required or []}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (schema({"a": {"enum": [-(2**63), "x"]}}), r"a: `enum`: takes numbers over -2\^63"),
        (schema({"a": {"anyOf": [{"$ref": "#/$defs/d0"}, {"type": "string"}]}}) | CHAIN, r"a: `\$ref`: takes at most"),
        (schema({"a": {"type": "integer", "multipleOf": 20011}}), "a: `multipleOf`: takes up to 10000 units"),
        (schema({"a": {"type": "array", "items": schema({"b": {"pattern": "(?=a)"}})}}), r"a\[\].b: `pattern`: look"),
        (schema({"a": {"type": "integer", "minimum": 3, "maximum": 2}}), "a: takes a schema that .*`minimum` .3."),
        (schema({f"f{at}": {"type": "integer"} for at in range(1500)}), "grammar of Row: takes at most 800 rules"),
    ],
)  # fmt: skip
def test_what_the_engine_would_refuse_is_told_at_launch(given: Schema, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_supported(record_of(given))


@pytest.mark.parametrize("required", [[], MANY[:1], MANY], ids=["none", "one", "all"])
@pytest.mark.parametrize("kind", ["integer", ["integer", "null"]], ids=str)
def test_hundreds_of_fields_are_within_a_grammars_limits(kind: Any, required: list[str]) -> None:
    record = record_of(schema({key: {"type": kind} for key in MANY}, required))
    check_supported(record)
    compiler().compile(Constraint(grammar=RecordGrammar(record).of("")))


def test_what_may_be_missing_comes_in_any_selection_in_order() -> None:
    names = ["a", "b", "c", "d", "e"]
    record = record_of(schema({key: {"type": "integer"} for key in names}))
    found = [[*json.loads(read(record, sentence(RecordGrammar(record).of(""), seed), "").json)] for seed in range(60)]
    assert all(keys == sorted(keys) for keys in found)
    assert len({tuple(keys) for keys in found}) > 10


def test_what_is_equal_stands_in_a_grammar_once() -> None:
    inner = schema({"x": {"type": "number", "minimum": 1}, "y": {"enum": ["p", "q"]}}, ["x", "y"])
    record = record_of(schema({"a": inner, "b": inner, "c": {"type": "array", "items": inner}}, ["a", "b", "c"]))
    assert RecordGrammar(record).of("").count("%json") == 1
