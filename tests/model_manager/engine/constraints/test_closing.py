"""An output that its budget has cut keeps what it can of its tokens, and a way that is allowed leads to its end."""

import json
from typing import Any

import pytest

from model_manager.engine.constraints.closing import Closed
from model_manager.engine.constraints.compiling import GrammarCompiler
from model_manager.engine.constraints.grammar import Grammar
from model_manager.wire.constraint import Constraint
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
CASES: list[tuple[dict[str, Any], str, int]] = [
    ({"json": True}, '{"a":[1,{"b":"text', 4),
    ({"json": True}, "[1", 1),
    ({"regex": r"\d{4}-\d\d-\d\d"}, "20", 8),
    ({"regex": "[a-z]*x"}, "abc", 1),
    ({"regex": "(?s:.*)</end>"}, "some text", 6),
    ({"regex": r"\d+kg"}, "12", 2),
    ({"regex": r"\d+\.\d+\.\d+"}, "1", 4),
    ({"regex": r"\d+(\.\d+)?%"}, "1.5", 1),
    ({"regex": r"\d+x\d+"}, "", 3),
    ({"grammar": 'start: "<a>" /[^<]*/ "</a>"'}, "<a>text", 6),
    ({"regex": "[0-9a-f]{32}"}, "0", 31),
    ({"choice": ["yes", "no", "perhaps"]}, "y", 2),
    ({"json_schema": PERSON}, '{"alias":"', 40),
    ({"json_schema": PERSON}, '{"alias":"a","children":[{"name":"Ada","bo', 70),
    ({"json_schema": LIST}, '["12', 4),
    ({"json_schema": {"type": "string", "format": "duration"}}, '"P1', 2),
    ({"json_schema": {"type": "string", "format": "uri"}}, '"http', 3),
    ({"json_schema": {"type": "string", "minLength": 40}}, '"', 42),
    ({"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 9}}, "[1", 17),
    ({"json_schema": {"type": "object", "additionalProperties": {"type": "integer"}}}, '{"a":1,', 6),
    ({"grammar": 'start: "(" start ")" | NUMBER\nNUMBER: /[0-9]+/'}, "(((", 5),
]


@pytest.fixture(scope="module", params=["byte_level_bpe", "metaspace_bpe_with_byte_fallback"])
def compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    folder = save(KINDS[request.param](), tmp_path_factory.mktemp("model"))
    return GrammarCompiler(folder, 1000, [2])


def close(grammar: Grammar, tokens: list[int], max_tokens: int) -> Closed | None:
    """What is found for an output of these tokens; checks that it is allowed, whole, and within the budget."""
    matcher = grammar.matcher()
    assert matcher.consume_tokens(tokens), "a test of something that is allowed"
    found = grammar._closing.close(matcher, len(tokens), max_tokens)
    if found is not None:
        whole = [*tokens[: found.num_kept], *found.way]
        assert len(whole) <= max_tokens
        other = grammar.matcher()
        assert other.consume_tokens(whole)
        assert other.is_accepting()
        assert not matcher.is_accepting(), "it stays where it was"
    return found


@pytest.mark.parametrize(("fields", "begun", "most"), CASES, ids=[f"{case[0]}{case[1]}"[:60] for case in CASES])
def test_all_is_kept_where_a_way_from_there_is_short_enough(
    compiler: GrammarCompiler, fields: dict[str, Any], begun: str, most: int
) -> None:
    grammar = compiler.compile(Constraint(**fields))
    tokens = grammar.tokenizer.tokenize_str(begun)
    found = close(grammar, tokens, len(tokens) + most)
    assert found is not None
    assert found.num_kept == len(tokens)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("back", [1, 3, 9])
def test_no_more_is_given_up_than_the_way_takes(seed: int, back: int) -> None:
    """Of brackets, whose shortest way is as long as they are deep."""
    grammar = COMPILER.compile(Constraint(grammar='start: "(" start ")" | "x"'))
    tokens = grammar.tokenizer.tokenize_str("(" * (20 + seed))
    found = close(grammar, tokens, len(tokens) + back)
    assert found is not None
    deepest = (len(tokens) + back - 1) // 2  # as many are closed, and there is an x
    assert found.num_kept == deepest


def test_what_is_behind_the_last_place_is_given_up() -> None:
    """A further item takes more than is left, so that the list ends before it."""
    item = {"type": "object", "properties": {"name": {"const": "a name that is long"}}, "required": ["name"]}
    grammar = COMPILER.compile(Constraint(json_schema={"type": "array", "items": item}))
    whole = json.dumps([{"name": "a name that is long"}] * 2, separators=(",", ":"))[:-1]
    tokens = grammar.tokenizer.tokenize_str(whole + ',{"name":"a na')
    found = close(grammar, tokens, len(tokens))
    assert found is not None
    assert grammar.tokenizer.decode_str([*tokens[: found.num_kept], *found.way]) == whole + "]"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fields", [{"json": True}, {"json_schema": PERSON}, {"json_schema": LIST}], ids=str)
def test_whatever_was_generated_is_closed(fields: dict[str, Any], seed: int) -> None:
    grammar = COMPILER.compile(Constraint(**fields))
    for max_tokens in (24, 40, 90):
        tokens, guide = generated(grammar, max_tokens, seed)
        if not guide.may_end:
            found = close(grammar, tokens, max_tokens)
            assert found is not None
            json.loads(grammar.tokenizer.decode_str([*tokens[: found.num_kept], *found.way]))


@pytest.mark.parametrize("max_tokens", [2, 30, 1000])
def test_none_is_told_where_there_is_none(max_tokens: int) -> None:
    grammar = COMPILER.compile(Constraint(grammar='start: "a" start'))
    assert close(grammar, grammar.tokenizer.tokenize_str("a" * max_tokens)[:max_tokens], max_tokens) is None
    long = COMPILER.compile(Constraint(regex="[ab]{3000}"))
    assert close(long, long.tokenizer.tokenize_str("ab" * max_tokens)[:max_tokens], max_tokens) is None


def test_a_matcher_that_failed_has_no_way(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(Constraint(regex="a"))
    matcher = grammar.matcher()
    assert not matcher.consume_token(0)
    assert grammar._closing.close(matcher, 0, 10) is None


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
    grammar._closing.close(Counting(guide.matcher, counts), len(tokens), max_tokens)  # type: ignore[arg-type]
    assert counts["copies"] <= 5_000
    assert counts["calls"] <= 500_000


def test_what_is_forced_counts_by_its_length_and_is_not_followed_beyond_the_budget() -> None:
    schema = {"type": "array", "items": {"const": "x" * 50_000}, "minItems": 3}
    grammar = COMPILER.compile(Constraint(json_schema=schema))
    for max_tokens in (8, 400):
        tokens, guide = generated(grammar, max_tokens, 1)
        counts = {"copies": 0, "calls": 0}
        grammar._closing.close(Counting(guide.matcher, counts), len(tokens), max_tokens)  # type: ignore[arg-type]
        assert counts["copies"] <= 500


def test_nothing_is_looked_for_where_the_shortest_output_is_too_long() -> None:
    grammar = COMPILER.compile(Constraint(json_schema={"type": "array", "items": {"type": "null"}, "minItems": 30}))
    tokens, guide = generated(grammar, 20, 1)
    assert guide.closed(20) is None
    counts = {"copies": 0, "calls": 0}
    assert grammar.closed(Counting(guide.matcher, counts), len(tokens), 20) is None  # type: ignore[arg-type]
    assert counts == {"copies": 0, "calls": 0}
    assert grammar.closed(guide.matcher, len(tokens), 100) is not None
