"""From any state of an output a way to its end is found: it is allowed, it ends there, and it is short."""

import json
import tracemalloc
from typing import Any

import pytest

from model_manager.engine.constraints.compiling import GrammarCompiler
from model_manager.engine.constraints.grammar import Grammar
from model_manager.wire.constraint import Constraint
from tests.model_manager.client.tokenizers_made_here import KINDS, save

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "alias": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#"}},
        "name": {"type": "string", "minLength": 3},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "born"],
    "additionalProperties": False,
}
SEVERAL: dict[str, Any] = {
    "type": "object",
    "properties": {
        name: {"type": "string", "pattern": pattern}
        for name, pattern in [("a", "[0-9]{4}"), ("b", "[A-Z].{12}[0-9]{3}"), ("c", "@.{4}[.]com$"), ("d", "x.{5}y")]
    },
    "required": ["a", "b", "c", "d"],
}
CASES: list[tuple[dict[str, Any], str, int]] = [
    ({"json": True}, "", 2),
    ({"json": True}, '{"a":[1,{"b":"text', 4),
    ({"json": True}, "[1", 1),
    ({"json": True}, "12", 0),
    ({"regex": r"\d{4}-\d\d-\d\d"}, "20", 8),
    ({"regex": "[a-z]*x"}, "abc", 1),
    ({"regex": "(?s:.*)</end>"}, "some text", 6),
    ({"grammar": 'start: "<a>" /[^<]*/ "</a>"'}, "<a>text", 6),
    ({"regex": "(a|b)*"}, "abba", 0),
    ({"regex": "[0-9a-f]{32}"}, "0", 31),
    ({"choice": ["yes", "no", "perhaps"]}, "", 2),
    ({"json_schema": PERSON}, "", 40),
    ({"json_schema": PERSON}, '{"alias":"', 40),
    ({"json_schema": PERSON}, '{"alias":"a","children":[{"name":"Ada","bo', 70),
    ({"json_schema": {"type": "string", "minLength": 40}}, '"', 42),
    ({"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 9}}, "[1", 17),
    ({"json_schema": {"type": "object", "additionalProperties": {"type": "integer"}}}, '{"a":1,', 6),
    ({"regex": "(?s:.*)(cat|dog)[0-9]{2}"}, "", 5),
    ({"regex": "(?s:.*)(cat|dog)[0-9]{2}"}, "a catalogue", 5),
    ({"grammar": r"start: /(.|\n)*[A-Z].{9}[0-9]{3}/"}, "some", 13),
    ({"json_schema": {"type": "string", "pattern": "[0-9]{3}"}}, "", 5),
    ({"json_schema": {"type": "string", "pattern": "INV-[0-9]{4}"}}, '"an INV-', 9),
    ({"json_schema": {"type": "string", "pattern": "[A-Z]{3}[0-9]{3}"}}, '"AB', 8),
    ({"json_schema": {"type": "string", "pattern": "[A-Z].{12}[0-9]{3}"}}, '"text A', 17),
    ({"json_schema": {"type": "string", "pattern": r"^.*@example\.com$"}}, '"ada@exam', 14),
    ({"json_schema": {"type": "string", "pattern": "a.{6}b"}}, "", 10),
    ({"json_schema": {"type": "string", "pattern": '"<.{9}>"'}}, '"', 16),
    ({"json_schema": {"type": "string", "allOf": [{"pattern": "[0-9]{3}"}, {"pattern": "[a-z]{3}X"}]}}, '"', 9),
    ({"json_schema": {"type": "array", "items": {"pattern": "A.{6}B", "type": "string"}}}, '["an', 11),
    ({"json_schema": SEVERAL}, "", 110),
    ({"json_schema": SEVERAL}, '{"a":"0000","b":"A 999', 70),
    ({"json_schema": {"type": "object", "patternProperties": {"k.{4}[0-9]$": {}}, "minProperties": 1}}, '{"a', 14),
    ({"grammar": 'start: "(" start ")" | NUMBER\nNUMBER: /[0-9]+/'}, "(((", 5),
]


@pytest.fixture(scope="module", params=["byte_level_bpe", "metaspace_bpe_with_byte_fallback"])
def compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    folder = save(KINDS[request.param](), tmp_path_factory.mktemp("model"))
    return GrammarCompiler(folder, 1000, [2])


def closed(grammar: Grammar, begun: str) -> tuple[list[int], str] | None:
    """The way from what has begun to its end, and the whole text; checks that all of it is allowed."""
    matcher = grammar.matcher()
    tokens = grammar.tokenizer.tokenize_str(begun)
    assert matcher.consume_tokens(tokens), "a test of something that is allowed"
    way = grammar.closing.shortest(matcher)
    if way is None:
        return None
    assert matcher.consume_tokens(way), "the way must start where the matcher stands, and be allowed"
    assert matcher.is_accepting()
    return way, grammar.tokenizer.decode_str(tokens + way)


@pytest.mark.parametrize(("fields", "begun", "most"), CASES, ids=[f"{case[0]}{case[1]}"[:60] for case in CASES])
def test_a_short_way_is_found(compiler: GrammarCompiler, fields: dict[str, Any], begun: str, most: int) -> None:
    grammar = compiler.compile(Constraint(**fields))
    found = closed(grammar, begun)
    assert found is not None
    way, text = found
    assert len(way) <= most, text
    if "json" in next(iter(fields)):
        json.loads(text)


def test_names_that_are_required_come_first(compiler: GrammarCompiler) -> None:
    optional = {f"a{index}": {"type": "string"} for index in range(20)}
    schema = {"type": "object", "properties": {**optional, "must": {"type": "integer"}}, "required": ["must"]}
    found = closed(compiler.compile(Constraint(json_schema=schema)), "")
    assert found is not None
    assert json.loads(found[1]) == {"must": 0}


def test_none_is_told_where_there_is_none(compiler: GrammarCompiler) -> None:
    assert closed(compiler.compile(Constraint(grammar='start: "a" start')), "") is None


def test_a_matcher_that_failed_has_no_way(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(Constraint(regex="a"))
    matcher = grammar.matcher()
    assert not matcher.consume_token(0)
    assert grammar.closing.shortest(matcher) is None


def test_the_beginnings_of_a_long_name_are_not_kept(compiler: GrammarCompiler) -> None:
    name = "a" * 20_000
    grammar = compiler.compile(Constraint(json_schema={"type": "object", "required": ["b"]}))
    tracemalloc.start()
    towards = grammar.closing.towards(["b", name], [])
    assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    tracemalloc.stop()
    assert towards.shortest(grammar.matcher()) is not None
