"""An output that its budget has cut keeps what it can, is allowed and whole, and never says otherwise than before."""

import json
import re
from typing import Any

import pytest

from millrace.model_manager.grammars.closing import Closed
from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.wire.constraint import Constraint
from tests.model_manager.client.tokenizers_made_here import KINDS, save
from tests.model_manager.engine.constraints.random_outputs import COMPILER, generated

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
LIST: dict[str, Any] = {"type": "array", "items": {"type": "string", "pattern": r"^\d+kg$"}}
VERDICT = {"type": "object", "properties": {"verdict": {"enum": ["no", "guilty of all that was said"]}}}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}, "m": {"type": "integer"}}}
CLOSED: list[tuple[dict[str, Any], str, str]] = [
    ({"json": True}, "[1,2,3,4", "[1,2,3]"),
    ({"json": True}, '[{"a":"b"},{"c', '[{"a":"b"}]'),
    ({"json_schema": NUMBER}, '{"n":12,"m":3456', '{"n":12}'),
    ({"json_schema": {"properties": {"o": NUMBER}}}, '{"o":{"n":1,"m":2},"more":1234', '{"o":{"n":1,"m":2}}'),
    ({"json_schema": LIST}, '["12kg","7kg","34', '["12kg","7kg"]'),
    ({"json_schema": {"type": "array", "items": {"type": "string", "format": "uri"}}}, '["a:b","http:', '["a:b"]'),
]
CUT_WITHIN: list[tuple[dict[str, Any], str, str]] = [
    ({"json": True}, '{"a":"some words of a text', '"}'),
    ({"json_schema": {"type": "array", "items": {"type": "string"}}}, '["one two three four', '"]'),
]
TEXT, INTEGER, BOOLEAN = ({"type": name} for name in ("string", "integer", "boolean"))
NOTE = {"type": "object", "properties": {"text": TEXT, "ok": BOOLEAN, "n": INTEGER}}
PAIR = {"prefixItems": [TEXT, INTEGER], "minItems": 2, "items": False}
AT = {"patternProperties": {"@": INTEGER}, "additionalProperties": False}
POINT = {"patternProperties": {"[.]$": INTEGER}, "additionalProperties": False}
INTERVALS = {"enum": ["[0]", "[0, 1]", "[0, 1, 2]"]}
LISTS = {"enum": [["red"], ["red", "blue"]]}
AMOUNT: dict[str, Any] = {"properties": {"amount": INTEGER}, "required": ["amount"], "additionalProperties": False}
NEGATED: dict[str, Any] = {
    "properties": {"amount": INTEGER, "negated": {"const": True}},
    "required": ["amount", "negated"],
    "additionalProperties": False,
}
CONTRARY: list[tuple[dict[str, Any], str]] = [
    ({"choice": ["no", "certainly yes because of everything"]}, "certainly yes bec"),
    ({"choice": ["no", "nothing of that sort"]}, "nothing of"),
    ({"choice": ["no", "no, and never again"]}, "no, and ne"),
    ({"choice": ["no.", "no, and never again."]}, "no, and ne"),
    ({"regex": r"\d+(, \d+)*"}, "1, 23, 4567"),
    ({"regex": "[a-z ]+[.]"}, "some words of"),
    ({"json_schema": VERDICT | {"required": ["verdict"]}}, '{"verdict":"guilty of'),
    ({"json_schema": {"enum": ["no", "no, and never"]}}, '"no, and ne'),
    ({"json_schema": NUMBER | {"required": ["n"]}}, '{"n":1234'),
    ({"json_schema": NUMBER | {"required": ["n", "m"]}}, '{"n":12,"m":3456'),
    ({"regex": "(abcdefghijklmnopqrstuvwxyz)?"}, "abcdefgh"),
    ({"regex": r"\d+kg"}, "1234"),
    ({"regex": r"\d+(\.\d+)?%"}, "12.3456"),
    ({"json_schema": {"type": "string", "format": "date"}}, '"2026-1'),
    ({"grammar": 'start: "(" start ")" | "x"'}, "((((((("),
    ({"regex": "<a>(?s:.*)</a>"}, "<a>one two three four five"),
    ({"regex": "(?s:.*)[.?!]"}, "Is it so, really"),
    ({"json_schema": {"type": "string", "pattern": "^.*(@|#)$"}}, '"user name'),
    ({"json_schema": {"type": "string", "pattern": "^.*@.*x$"}}, '"john.doe@'),
    ({"json_schema": NOTE | {"required": ["text", "ok"]}}, '{"text":"The order was checked by two people","ok":fal'),
    ({"json_schema": NOTE | {"required": ["text", "n"]}}, '{"text":"some longer text is here","n":12345'),
    ({"json_schema": PAIR}, '["hello there",12345'),
    ({"json_schema": {"properties": {"v": INTERVALS}, "required": ["v"]}}, '{"v":"[0, 1, '),
    ({"json_schema": {"properties": {"v": LISTS}, "required": ["v"]}}, '{"v":["red","bl'),
    ({"json_schema": {"anyOf": [AMOUNT, NEGATED]}}, '{"amount":12,"neg'),
    ({"choice": ["{x}", "{x, y}"]}, "{x, "),
    ({"regex": r".*(\napproved: (yes|no))?"}, "He did it\napproved: n"),
    ({"regex": r"(no|[^\n]{20,}[.])"}, "no doubt at all it is so and"),
    ({"json_schema": {"type": "string", "pattern": "^.*(approved|rejected)$"}}, '"Was approved at first, then rej'),
    ({"json_schema": {"anyOf": [{"enum": ["yes", "no"]}, {"type": "string", "minLength": 10}]}}, '"no dou'),
    (
        {"json_schema": {"$ref": "#/$defs/money/X", "$defs": {"money": {"X": {"anyOf": [AMOUNT, NEGATED]}}}}},
        '{"amount":12,"neg',
    ),
    ({"json_schema": {"$ref": "#/x/y", "x": {"y": LISTS}}}, '["red","bl'),
    ({"json_schema": {"enum": ['5"', '5" (used)', "6"]}}, '"5\\'),
    ({"json_schema": {"anyOf": [NOTE, AMOUNT]}}, '{"text":"x","n":1234'),
    ({"regex": r"\[\d+(, \d+)?\]"}, "[12, "),
    ({"json_schema": AT}, '{"john.doe'),
    ({"json_schema": POINT}, '{"Ann. And more'),
]


@pytest.fixture(scope="module", params=["byte_level_bpe", "metaspace_bpe_with_byte_fallback"])
def compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    folder = save(KINDS[request.param](), tmp_path_factory.mktemp("model"))
    return GrammarCompiler(folder, 1000, [2])


def close(grammar: Grammar, tokens: list[int], max_tokens: int) -> Closed | None:
    """What is found for an output of these tokens; checks that it is allowed, whole, and within the budget."""
    matcher = grammar.matcher()
    assert matcher.consume_tokens(tokens), "a test of something that is allowed"
    found = grammar._closing.close(matcher, tokens, max_tokens)
    if found is not None:
        whole = [*tokens[: found.num_kept], *found.way]
        assert len(whole) <= max_tokens
        other = grammar.matcher()
        assert other.consume_tokens(whole)
        assert other.is_accepting()
        assert not matcher.is_accepting(), "it stays where it was"
    return found


def whole(compiler: GrammarCompiler, fields: dict[str, Any], said: str, more: int = 0) -> str | None:
    """What an output that is cut after that text is closed to."""
    grammar = compiler.compile(Constraint(**fields))
    tokens = grammar.tokenizer.tokenize_str(said)
    found = close(grammar, tokens, len(tokens) + more)
    return None if found is None else grammar.tokenizer.decode_str([*tokens[: found.num_kept], *found.way])


@pytest.mark.parametrize(("fields", "said", "expected"), CLOSED, ids=[said for _, said, _ in CLOSED])
def test_what_has_begun_last_is_left_out(
    compiler: GrammarCompiler, fields: dict[str, Any], said: str, expected: str
) -> None:
    assert whole(compiler, fields, said) == expected


@pytest.mark.parametrize(("fields", "said", "end"), CUT_WITHIN, ids=[said for _, said, _ in CUT_WITHIN])
def test_free_text_is_cut_short(compiler: GrammarCompiler, fields: dict[str, Any], said: str, end: str) -> None:
    found = whole(compiler, fields, said)
    assert found is not None
    assert found.endswith(end)
    assert said.startswith(found.removesuffix(end))
    assert len(found) > len(said) // 2


@pytest.mark.parametrize(("fields", "said"), CONTRARY, ids=[said for _, said in CONTRARY])
@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_value_that_has_begun_is_never_another(
    compiler: GrammarCompiler, fields: dict[str, Any], said: str, more: int
) -> None:
    """If more tokens are left, the value may continue; it never changes."""
    found = whole(compiler, fields, said, more)
    assert found is None or (more and found.startswith(said[:-1]))


@pytest.mark.parametrize("seed", range(40))
def test_what_is_said_is_the_models_but_for_separators_and_ends_of_text(seed: int) -> None:
    """The texts are compared alone: where the two differ, one ends before a comma or within a string."""
    grammar = COMPILER.compile(Constraint(json=True))
    tokens, guide = generated(grammar, 30, seed)
    if guide.may_end:
        return
    found = close(grammar, tokens, 30)
    if found is None:
        return
    own = grammar.tokenizer.decode_bytes(tokens)
    other = grammar.tokenizer.decode_bytes([*tokens[: found.num_kept], *found.way])
    at = next((at for at, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), None)
    if at is not None:
        in_text = len(re.findall(rb'(?<!\\)"', own[:at].replace(rb"\\", b""))) % 2 == 1
        assert in_text or own[at : at + 1] == b","
        assert other[at : at + 1] in (b'"', b"]", b"}")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fields", [{"json": True}, {"json_schema": PERSON}, {"json_schema": LIST}], ids=str)
def test_whatever_is_closed_is_json(fields: dict[str, Any], seed: int) -> None:
    grammar = COMPILER.compile(Constraint(**fields))
    for max_tokens in (24, 40, 90):
        tokens, guide = generated(grammar, max_tokens, seed)
        if not guide.may_end:
            found = close(grammar, tokens, max_tokens)
            if found is None:
                continue
            json.loads(grammar.tokenizer.decode_str([*tokens[: found.num_kept], *found.way]))


@pytest.mark.parametrize("max_tokens", [2, 30, 1000])
def test_none_is_told_where_there_is_none(max_tokens: int) -> None:
    grammar = COMPILER.compile(Constraint(grammar='start: ("a" | "b") start'))
    assert close(grammar, grammar.tokenizer.tokenize_str("a" * max_tokens)[:max_tokens], max_tokens) is None
    long = COMPILER.compile(Constraint(regex="[ab]{3000}"))
    assert close(long, long.tokenizer.tokenize_str("ab" * max_tokens)[:max_tokens], max_tokens) is None


def test_a_matcher_that_failed_has_no_way(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(Constraint(regex="a"))
    matcher = grammar.matcher()
    assert not matcher.consume_token(0)
    assert grammar._closing.close(matcher, [], 10) is None


class Counting:
    """A matcher, and its copies, that count what is asked of them."""

    def __init__(self, matcher: Any, counts: dict[str, int]) -> None:
        self._matcher = matcher
        self._counts = counts

    def deep_copy(self) -> "Counting":
        self._counts["copies"] += 1
        return Counting(self._matcher.deep_copy(), self._counts)

    def __getattr__(self, name: str) -> Any:
        self._counts["calls"] += 1
        return getattr(self._matcher, name)


@pytest.mark.parametrize("required", [5, 60, 900])
@pytest.mark.parametrize("max_tokens", [64, 2000])
def test_the_work_is_bounded_whatever_the_way_takes(required: int, max_tokens: int) -> None:
    properties = {f"name{index}": {"type": "string"} for index in range(required)}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    grammar = COMPILER.compile(Constraint(json_schema={"type": "array", "items": schema, "minItems": 3}))
    tokens, guide = generated(grammar, max_tokens, 1)
    assert not guide.may_end
    counts = {"copies": 0, "calls": 0}
    grammar._closing.close(Counting(guide.matcher, counts), tokens, max_tokens)  # type: ignore[arg-type]
    assert counts["copies"] <= 5_000
    assert counts["calls"] <= 500_000


def test_what_is_forced_counts_by_its_length_and_is_not_followed_beyond_the_budget() -> None:
    schema = {"type": "array", "items": {"const": "x" * 50_000}, "minItems": 3}
    grammar = COMPILER.compile(Constraint(json_schema=schema))
    for max_tokens in (8, 400):
        tokens, guide = generated(grammar, max_tokens, 1)
        counts = {"copies": 0, "calls": 0}
        grammar._closing.close(Counting(guide.matcher, counts), tokens, max_tokens)  # type: ignore[arg-type]
        assert counts["copies"] <= 500


def test_nothing_is_looked_for_where_no_ending_could_be_taken() -> None:
    """The grammar is not JSON and its rest is not certain: two states of up to 2,000 are enough to see that."""
    grammar = COMPILER.compile(Constraint(regex=r"[a-z0-9._]+@[a-z0-9.]+\.(com|org)"))
    matcher, tokens = grammar.matcher(), grammar.tokenizer.tokenize_str("someone.of.that.name@some.where")
    assert matcher.consume_tokens(tokens)
    counts = {"copies": 0, "calls": 0}
    assert grammar._closing.close(Counting(matcher, counts), tokens, len(tokens)) is None  # type: ignore[arg-type]
    assert counts["copies"] <= 2


def test_nothing_is_looked_for_where_the_shortest_output_is_too_long() -> None:
    grammar = COMPILER.compile(Constraint(json_schema={"type": "array", "items": {"type": "null"}, "minItems": 30}))
    tokens, guide = generated(grammar, 20, 1)
    assert guide.closed(20) is None
    counts = {"copies": 0, "calls": 0}
    assert grammar.closed(Counting(guide.matcher, counts), tokens, 20) is None  # type: ignore[arg-type]
    assert counts == {"copies": 0, "calls": 0}
    assert grammar.closed(guide.matcher, tokens, 100) is not None
