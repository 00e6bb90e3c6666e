"""Schemas mean what the specification says, where llguidance alone would read them otherwise."""

import copy
import datetime
import re
import sys
from typing import Any

import pytest

from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.grammars.llguidance_schemas import DATE, prepared
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from tests.model_manager.client.tokenizers_made_here import KINDS, save
from tests.model_manager.engine.constraints.instances_written import takes

DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"text": {"type": "string"}}}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    return GrammarCompiler(save(KINDS["byte_level_bpe"](), tmp_path_factory.mktemp("model")), 1000, [2])


CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    (DRAFT_7 | {"properties": {"a": {"$ref": "#/definitions/text", "enum": [1]}}}, [{"a": "x"}], [{"a": 1}]),
    ({"$ref": "#/$defs/text", "maxLength": 1, "$defs": {"text": {"type": "string"}}}, ["a"], ["aa", 1]),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, [None], [1]),
    ({"type": "array", "uniqueItems": False, "not": False}, [[1, 1]], [1]),
    ({"then": False, "if": True, "type": "null"}, [], [None]),
    ({"then": False, "type": "null"}, [None], [1]),
    ({"type": "integer", "maximum": 2**63 - 1}, [2**63 - 1024, -1], [2**63]),
    ({"const": 2**60}, [2**60], [2**60 + 1]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2026-12-31"], ["2026-02-29", "2026-2-1", "0000-01-01"]),
    ({"format": "date", "pattern": "^2"}, ["2024-02-29", 5], ["2026-02-29", "1999-01-01"]),
    ({"type": "string", "format": "date-time"}, ["2024-02-29T10:00:00Z"], ["2026-02-29T10:00:00Z"]),
    ({"minProperties": 2, "required": ["a"]}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ({"type": "number", "multipleOf": 0.1}, [0.3, -0.2, 1], [0.35]),
    ({"type": "number", "minimum": 0.5}, [0.5, 7], [0.4, 0]),
    ({"type": "integer", "minimum": -(2**63)}, [1 - 2**53, 5], [0.5]),
    ({"allOf": [{"type": "number", "multipleOf": 0.01}, {"multipleOf": 100}]}, [0, 300], [50]),
    ({"$ref": "#/x/A", "x": {"A": {"type": "string", "format": "date"}}}, ["2024-02-29"], ["2023-02-29"]),
    (
        {
            "$ref": "#/components/A",
            "components": {
                "A": {
                    "properties": {
                        "b": {"$ref": "#/components/B"},
                        "c": {"$ref": "#/components/A/properties/d"},
                        "d": {"format": "date"},
                    },
                    "example": {"id": "a1", "$ref": "#/nowhere"},
                },
                "B": {"type": "integer", "uniqueItems": False},
            },
        },
        [{"b": 1, "c": "2024-02-29"}],
        [{"b": "x"}, {"c": "2023-02-29"}],
    ),
    ({"$ref": "#/x/0", "x": [{"type": "integer", "uniqueItems": False}]}, [1], ["a"]),
    ({"type": "string", "format": "time"}, ["10:00:00Z", "23:59:60Z"], ["10:00:60Z", "23:59:60+01:00", "24:00:00Z"]),
    ({"format": "date-time", "type": "string"}, ["2026-01-01T00:00:59.9+01:00"], ["2026-01-01T00:00:60Z"]),
    ({"type": "string", "format": "hostname"}, ["a.example"], ["a." * 127 + "example"]),
    ({"type": "string", "minLength": 2, "maxLength": 2}, ["é😀", "\n\t", '"\\'], ["a", "abc"]),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES, ids=lambda value: str(value)[:50])
def test_what_the_schema_means_is_taken(
    compiler: GrammarCompiler, schema: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    if not valid:  # `if` and its kin are not supported, whatever an extension of the schema says
        with pytest.raises(InvalidRequest, match="if"):
            compiler.compile(Constraint(json_schema=schema))
        return
    grammar = compiler.compile(Constraint(json_schema=schema))
    assert [value for value in valid if not takes(grammar, value)] == []
    assert [value for value in invalid if takes(grammar, value)] == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"a": {"const": 2**53 + 1}}}, "takes integers that are floats of 64 bits too"),
        ({"enum": ["a", {"b": ["\x01"]}]}, "`enum`: takes no control characters"),
        ({"enum": [{"a": [2**53 + 1]}]}, "`enum`: takes integers that are floats of 64 bits too"),
        ({"minProperties": 3, "required": ["a"]}, "takes at most one more"),
        ({"$ref": "#/x/A", "x": {"A": {"const": 2**53 + 1}}}, "takes integers that are floats of 64 bits too"),
        ({"$ref": "#/x/A", "x": {"A": {"const": -(2**63)}}}, "takes numbers over -2^63"),
        ({"$ref": "#/default", "default": {"minProperties": 3}}, "takes at most one more"),
        (DRAFT_7 | {"$ref": "#/definitions", "definitions": {"const": -(2**63)}}, "takes numbers over -2^63"),
        ({"$ref": "urn:a#/x", "$id": "urn:a", "x": {"const": -(2**63)}}, "`$ref`: takes one to a schema in `$defs`"),
        ({"items": {"$id": "urn:a", "$ref": "#/x", "x": {"minProperties": 3}}}, "`$ref`: takes one to a schema"),
        ({"type": "integer", "minimum": -1e20, "maximum": -1e19}, "`minimum`: takes bounds over -2^63"),
        ({"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}, "`maximum`: takes bounds over -2^63"),
        ({"allOf": [{"multipleOf": 7919}, {"multipleOf": 7907}]}, "`multipleOf`: takes up to 10000 units"),
        ({"$ref": "#/$defs/a", "multipleOf": 7919, "$defs": {"a": {"multipleOf": 7907}}}, "`multipleOf`: takes up to"),
        ({"$schema": "http://json-schema.org/draft-03/schema#", "disallow": ["string"]}, "`$schema`: takes draft 4"),
    ],
    ids=str,
)
def test_what_would_be_read_otherwise_is_refused(compiler: GrammarCompiler, schema: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^constraint\.json_schema: .*{re.escape(said)}"):
        compiler.compile(Constraint(json_schema=schema))


def test_a_schema_is_left_as_it_was() -> None:
    schema = {"$ref": "#/x/A", "x": {"A": {"type": "string", "format": "date"}}}
    before = copy.deepcopy(schema)
    assert prepared(schema) == prepared(schema) != before
    assert schema == before


def test_alternatives_of_many_steps_at_once_are_refused(compiler: GrammarCompiler) -> None:
    options = [{"multipleOf": number} for number in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)]
    parts = [{"anyOf": options}] * 1000
    with pytest.raises(InvalidRequest, match="`multipleOf`: takes at most 10 different alternatives"):
        compiler.compile(Constraint(json_schema={"allOf": parts}))


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, [r'{"a":1,"\u0061":"x"}', r'{"\u0061":1}']),
        ({"patternProperties": {"^a": {"type": "integer"}}}, [r'{"\u0061":"x"}']),
        ({"properties": {"/": {"type": "integer"}}}, [r'{"\/":"x"}']),
    ],
    ids=str,
)
def test_a_name_comes_in_one_way_of_writing_alone(
    compiler: GrammarCompiler, schema: dict[str, Any], texts: list[str]
) -> None:
    grammar = compiler.compile(Constraint(json_schema={"type": "object"} | schema))
    for text in texts:
        tokens = grammar.tokenizer.tokenize_str(text)
        assert grammar.matcher().try_consume_tokens(tokens) < len(tokens)


def test_characters_without_a_short_escape_stand_for_themselves(compiler: GrammarCompiler) -> None:
    assert takes(compiler.compile(Constraint(json_schema={"type": "string"})), '"\\/\b\f\n\r\t\u2028é😀')


def test_a_date_is_a_day_that_there_is() -> None:
    days = [datetime.date(year, 2, 28) + datetime.timedelta(1) for year in range(1, 10_000)]
    assert all(re.fullmatch(DATE, day.isoformat()) for day in days)
    missing = [f"{day.year:04}-02-29" for day in days if day.month == 3] + ["2026-04-31", "2026-00-01", "2026-13-01"]
    assert not any(re.fullmatch(DATE, day) for day in missing)
    assert all(re.fullmatch(DATE, f"2026-{month:02}-{day:02}") for month in range(1, 13) for day in range(1, 29))


def test_references_that_are_too_deep_for_the_stack_are_refused_by_name() -> None:
    count = 96
    chain: dict[str, Any] = {f"a{index}": {"allOf": [{"$ref": f"#/$defs/a{index + 1}"}]} for index in range(count)}
    schema = {"$ref": "#/$defs/a0", "$defs": chain | {f"a{count}": {}}}

    def within(frames: int) -> dict[str, Any]:
        return within(frames - 1) if frames else prepared(schema)

    with pytest.raises(InvalidRequest, match=r"constraint\.json_schema: takes one whose parts, .* less deeply"):
        within(sys.getrecursionlimit() - 400)


def _places(count: int, reference: str, **each: Any) -> dict[str, Any]:
    """Definitions, each of them a reference to the next."""
    parts = {f"a{at}": {"$ref": f"{reference}{at + 1}"} for at in range(count)} | {f"a{count}": {"type": "integer"}}
    return {key: part | {name: said.format(key) for name, said in each.items()} for key, part in parts.items()}


CHAINS: dict[str, Any] = {
    "anchors": lambda count: {"$ref": "#a0", "$defs": _places(count, "#a", **{"$anchor": "{}"})},
    "identifiers": lambda count: {"$ref": "urn:a0", "$defs": _places(count, "urn:a", **{"$id": "urn:{}"})},
    "places of a part": lambda count: {
        "$ref": "#/$defs/b",
        "$defs": {"b": {"$id": "urn:b", "$ref": "#/$defs/a0", "$defs": _places(count, "#/$defs/a")}},
    },
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_references_that_are_not_followed_are_few_enough_for_the_stack(compiler: GrammarCompiler, chain: Any) -> None:
    compiler.compile(Constraint(json_schema=chain(100)))
    with pytest.raises(InvalidRequest, match=r"\$ref`: takes fewer references by `\$id` and `\$anchor`"):
        compiler.compile(Constraint(json_schema=chain(3000)))
