"""JSON Schemas as the types of rows."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.json_schemas import schema_of
from millrace.transforms.typed.leaves import bare, choice
from millrace.transforms.typed.record_grammar import RecordGrammar
from millrace.transforms.typed.shapes import Items, Leaf, Maybe, Record, Shape
from tests.transforms.constrained_client import answer, compiler
from tests.transforms.typed.invoices import SCHEMA


def member(part: Any, **root: Any) -> Shape:
    """The shape of a property."""
    record = record_of({"type": "object", "properties": {"a": part}, "required": ["a"], **root})
    assert isinstance(record, Record)
    return record.members[0].shape


def test_names_are_identifiers_and_keys_are_as_they_were() -> None:
    record = record_of(SCHEMA)
    assert [(each.name, each.key) for each in record.members][1::4] == [
        ("order_id", "order-id"),
        ("field_class", "class"),
    ]
    odd = record_of({"properties": {"1 a": {"type": "string"}, "_1_a": {"type": "string"}, "é": {"type": "string"}}})
    assert [each.name for each in odd.members] == ["field_1_a", "field_1_a_", "field_"]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "string", "maxLength": 3}, "text"),
        ({"type": "string", "format": "email"}, "text"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time", "title": "When"}, "datetime"),
        ({"type": "string", "format": "date", "pattern": "^2026"}, "text"),
        ({"type": "integer", "minimum": 0}, "integer"),
        ({"enum": ["a", "b"]}, "text"),
        ({"type": "integer", "const": 3}, "integer"),
        ({"enum": ["a", 1]}, "json"),
        ({"type": ["string", "number"]}, "json"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "json"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "json"),
        ({"type": "object", "properties": {"b": {"type": "string"}}, "minProperties": 1}, "json"),
        ({"type": "array"}, "json"),
        ({}, "json"),
        (True, "json"),
    ],
)
def test_what_a_row_has_no_type_for_is_json(part: Any, kind: str) -> None:
    found = member(part)
    assert isinstance(found, Leaf)
    assert found.kind == kind


@pytest.mark.parametrize(
    "part",
    [
        {"type": ["integer", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]},
        {"type": ["null", "integer"], "enum": [1, None]},
    ],
)
def test_null_makes_a_value_optional(part: Any) -> None:
    found = member(part, **{"$defs": {"n": {"type": "integer"}}})
    assert isinstance(found, Maybe)
    assert isinstance(found.shape, Leaf)
    assert found.shape.kind == "integer"


@pytest.mark.parametrize(
    "part",
    [
        {"type": ["string", "null"], "const": "x"},
        {"type": ["string", "null"], "enum": ["a", "b"]},
        {"type": ["null", "string"], "enum": ["a", 3, True]},
        {"type": "string", "enum": ["a", None, 3]},
        {"oneOf": [{"enum": ["a", "b"]}, {"enum": [3]}]},
    ],
)
def test_null_is_no_value_where_a_part_of_the_schema_does_not_take_it(part: Any) -> None:
    found = member(part)
    assert not isinstance(found, Maybe)
    validator = jsonschema.Draft202012Validator(part)
    for value in (None, "a", "b", "x", 3, True):
        assert jsonschema.Draft202012Validator(schema_of(found)).is_valid(value) == validator.is_valid(value)


@pytest.mark.parametrize("part", [{"type": ["integer", "null"], "enum": [3, None, "a"]}, {"enum": [3, None]}])
def test_a_choice_may_be_optional(part: Any) -> None:
    assert member(part) == Maybe(choice([3]))


@pytest.mark.parametrize(
    "part",
    [
        {"oneOf": [{"type": ["string", "null"]}, {"type": "null"}]},
        {"oneOf": [{"type": "null"}, {"enum": ["a", None]}]},
        {"type": ["null", "null"]},
        {"type": ["string", "null"], "const": None},
        {"type": ["string", ["null"]], "enum": ["a"]},
        {"enum": "ab"},
    ],
)
def test_what_may_be_null_in_ways_that_no_row_has_is_json_as_it_is(part: Any) -> None:
    assert member(part) == Leaf("json", part)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "integer", "description": "how many"},
        {"$ref": "#/$defs/n"},
        {"$ref": "#/$defs/n", "description": "how many"},
        {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
        {"anyOf": [{"type": "null"}, {"type": "integer", "description": "how many"}]},
    ],
)
def test_a_description_is_found_where_it_stands(part: Any) -> None:
    number = {"type": "integer", "description": "how many"}
    schema = {"properties": {"a": part}, "$defs": {"n": number}}
    assert record_of(schema).members[0].hint == "how many"


def test_references_lead_into_lists_and_names_of_any_characters() -> None:
    parts = {"$defs": {"a b": {"type": "integer"}, "list": {"anyOf": [{"type": "string"}, {"type": "boolean"}]}}}
    assert member({"$ref": "#/$defs/a%20b"}, **parts) == bare("integer")
    assert member({"$ref": "#/$defs/list/anyOf/1"}, **parts) == bare("boolean")


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda schema: {"name": "rows", "strict": True, "schema": schema},
        lambda schema: {"type": "json_schema", "json_schema": {"name": "rows", "schema": schema}},
    ],
)
def test_a_schema_in_openais_wrapper_is_the_schema(wrapped: Any, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"schema": {"type": "integer"}, "name": {"type": "string"}}}
    (tmp_path / "a.json").write_text(json.dumps(wrapped(schema)))
    assert record_of(wrapped(schema)) == record_of(schema) == record_of(tmp_path / "a.json")


@pytest.mark.parametrize("inner", [True, 5, "{", "[]"])
def test_a_wrapper_of_no_schema_of_an_object_is_refused(inner: Any) -> None:
    with pytest.raises(ConfigError, match=r"JSON Schema|json_schema\.schema: takes"):
        record_of({"name": "rows", "schema": inner})


@pytest.mark.parametrize(
    "draft", ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"]
)
def test_references_are_followed_until_they_recur(draft: str) -> None:
    node = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "inner": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    }
    schema = {"$id": "https://example.com/node.json", "$schema": draft, "$defs": {"node": node}}
    schema |= {"properties": {"a": {"$ref": "#/$defs/node"}}}
    record = record_of(schema)
    assert isinstance(record.members[0].shape, Record)
    inner = record.members[0].shape.members[1].shape
    assert isinstance(inner, Items)
    assert isinstance(inner.item, Leaf)
    assert inner.item.kind == "json"
    valid = jsonschema.Draft202012Validator(schema_of(record)).is_valid
    assert valid({"a": {"name": "x", "inner": [{"name": "y", "inner": [{"name": "z"}]}]}})
    assert not valid({"a": {"name": "x", "inner": [{"name": "y", "inner": [{"name": 3}]}]}})
    for seed in range(4):
        compiled = compiler().compile(Constraint(grammar=RecordGrammar(record).of("")))
        text = compiled.tokenizer.decode_bytes(answer(compiled, seed)[0]).decode()
        jsonschema.validators.validator_for(schema)(schema).validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "items": {"type": "string"}}, "it has items"),
        ({"type": "object"}, "it has no properties"),
        ({"anyOf": [{}]}, "it has anyOf"),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "it requires b"),
        ({"$ref": "https://example.com/x"}, "leads nowhere"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "no such part"),
        (
            {"properties": {"a": {"$ref": "#item"}}, "$defs": {"b": {"$anchor": "item"}}},
            "'#item': .* not by an .anchor",
        ),
    ],
)
def test_what_is_no_type_of_rows_is_refused_in_a_sentence(schema: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        record_of(schema)


def nested(levels: int) -> Any:
    part: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        part = {"type": "array", "items": part}
    return part


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "integer", "minimum": "3"}, "a: minimum is '3': takes a number"),
        ({"type": "integer", "exclusiveMaximum": True}, "a: exclusiveMaximum is True: takes a number"),
        ({"type": "number", "maximum": None}, "a: maximum is None: takes a number"),
        ({"type": "number", "minimum": math.nan}, "a: minimum is nan: takes a number"),
        ({"type": "integer", "multipleOf": 0}, "a: multipleOf is 0: takes a number over 0"),
        ({"type": "string", "maxLength": 1.5}, "a: maxLength is 1.5: takes an integer that is 0 or more"),
        ({"type": "string", "format": ["date"]}, r"a: format is \['date'\]: takes a string"),
        ({"type": "array", "items": {}, "minItems": "x"}, "a: minItems is 'x': takes an integer that is 0 or more"),
        ({"type": "array", "items": {}, "minItems": -1}, "a: minItems is -1: takes an integer"),
        ({"type": "array", "items": {}, "maxItems": 1.5}, "a: maxItems is 1.5: takes an integer"),
        (
            {"type": "array", "items": {}, "minItems": 3, "maxItems": 1},
            "a: minItems is 3: takes .* not over maxItems, 1",
        ),
        ({"type": "array", "items": {"$ref": 5}}, r"a\[\]: \$ref is 5: takes a string"),
        ({"$ref": "#/$defs/b"}, r"a: \$ref '#/\$defs/b': the JSON Schema has no such part"),
        ({"properties": {"b": {"type": "integer", "minimum": {}}}}, r"a\.b: minimum is {}: takes a number"),
        ({"properties": {"b": {}}, "required": [["b"]]}, r"a: required is \[\['b'\]\]: takes a list of names"),
        ({"properties": {1: {}}}, "a: properties is .*: takes an object whose keys are strings"),
        ({"anyOf": [{"type": "integer", "minimum": "3"}, {"type": "null"}]}, "a: minimum is '3'"),
        ({"type": ["string", "integer"], "default": {3}}, "a: takes JSON: "),
        (nested(200), "nested deeper than 100 levels"),
    ],
)
def test_a_keyword_that_has_what_it_does_not_take_is_told_by_its_field(part: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        member(part)


def test_what_is_required_is_a_list_of_names() -> None:
    with pytest.raises(ConfigError, match=r"the JSON Schema: required is \[\['a'\]\]: takes a list of names"):
        record_of({"type": "object", "required": [["a"]]})
    assert member({"type": "array", "items": {}, "maxItems": 2.0}) == Items(Leaf("json", {}), 0, 2)


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(SCHEMA))
    assert record_of(str(tmp_path / "a.json")) == record_of(SCHEMA)
    (tmp_path / "b.json").write_text("[")
    for name in ("b.json", "c.json"):
        with pytest.raises(ConfigError, match="takes a file with a JSON Schema"):
            record_of(tmp_path / name)


def test_what_json_schema_does_not_know_says_nothing_of_a_column() -> None:
    part = {"type": "string", "maxLength": 3, "example": "a", "x-order": 1}
    known = {"type": "string", "maxLength": 3}
    shapes = [
        record_of({"type": "object", "properties": {"a": each, "b": {"type": "array", "items": each}}}).members
        for each in (part, known)
    ]
    assert shapes[0] == shapes[1]
