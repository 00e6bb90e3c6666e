"""Outputs of a model that has no idea come to their end in the tokens there are; what that takes is counted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from model_manager.engine.constraints.compiling import GrammarCompiler
from model_manager.engine.constraints.ends import Ends
from model_manager.engine.constraints.grammar import Grammar
from model_manager.engine.constraints.guide import Guide
from model_manager.wire.constraint import Constraint

FOLDER = Path(__file__).parents[4] / "model_manager" / "store" / "embedded" / "millrace-tiny"
COMPILER = GrammarCompiler(FOLDER, 2000, [1])


def record(count: int, **of: Any) -> dict[str, Any]:
    """An object of so many properties, all required."""
    properties = {f"name{index}": of for index in range(count)}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


OPTIONAL = {"a": record(3, type="string"), "b": record(30, type="null")}
LISTS: dict[str, tuple[dict[str, Any], int]] = {
    "large items": ({"json_schema": {"type": "array", "items": record(25, type="integer")}}, 300),
    "long items": ({"json_schema": {"type": "array", "items": {"type": "string", "minLength": 90}}}, 150),
    "items of items": ({"json_schema": {"type": "array", "items": {"type": "array", "minItems": 70}}}, 250),
    "brackets": ({"grammar": 'start: "[" (start ("," start)*)? "]"'}, 40),
    "optional": ({"json_schema": {"type": "object", "properties": OPTIONAL}}, 240),
    "any": ({"json": True}, 60),
    "pattern": ({"json_schema": record(1, type="string", pattern="[A-Z].{12}[0-9]{3}")}, 40),
    "patterns": ({"json_schema": record(3, type="string", pattern="a.{6}b.*c")}, 120),
}


def generated(grammar: Grammar, max_tokens: int, seed: int, given: tuple[int, ...] = ()) -> tuple[list[int], Guide]:
    """An output under the grammar, any token that is allowed as likely; raises ConstraintNotMet."""
    guide = Guide(grammar, Ends(eos=[1], stops=[], ignore_eos=True))
    tokens: list[int] = []
    for token in given:
        guide.take_again(token, max_tokens - len(tokens) - 1)
        tokens.append(token)
    while len(tokens) < max_tokens and not guide.is_over:
        token = guide.choose(random.Random(f"{seed} {len(tokens)}").randrange(2**32))
        if guide.take(token, max_tokens - len(tokens) - 1):
            tokens.append(token)
    guide.check_end("there are no tokens left")
    return tokens, guide


@pytest.mark.parametrize("name", LISTS)
def test_nothing_is_opened_that_could_not_be_closed(name: str) -> None:
    fields, max_tokens = LISTS[name]
    grammar = COMPILER.compile(Constraint(**fields))
    for seed in range(6):
        tokens, _ = generated(grammar, max_tokens + seed, seed)
        assert len(tokens) <= max_tokens + seed
        if "grammar" not in fields:
            json.loads(grammar.tokenizer.decode_str(tokens))


REMARK = [{"$ref": "#"}, {"const": "the closing remark of it"}]
NESTED: dict[str, tuple[dict[str, Any], str]] = {
    "grammar": ({"grammar": 'start: "(" start "<the closing of it>" | "x"'}, "("),
    "late": ({"grammar": 'start: "(" start "<what closes it takes many, many tokens>" | "some words to begin"'}, "("),
    "schema": (
        {
            "json_schema": {
                "anyOf": [{"type": "null"}, {"type": "array", "prefixItems": REMARK, "items": False, "minItems": 2}]
            }
        },
        "[",
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_a_model_opens_as_long_as_it_may_is_closed_whatever_the_budget(name: str) -> None:
    fields, opening = NESTED[name]
    grammar = COMPILER.compile(Constraint(**fields))
    token = grammar.tokenizer.tokenize_str(opening)[0]
    assert grammar.shortest is not None
    for max_tokens in range(len(grammar.shortest), 221):
        guide, left = Guide(grammar, Ends(eos=[1], stops=[], ignore_eos=True)), max_tokens
        while left and not guide.is_over:
            is_open = guide.only is None and guide.valid([token]) == [token]
            left -= guide.take(token if is_open else guide.choose(left), left - 1)
        guide.check_end(f"of {max_tokens} tokens none are left")


def test_a_choice_that_fits_is_the_models() -> None:
    grammar = COMPILER.compile(Constraint(choice=("no", "yes", "perhaps it is")))
    longest = len(grammar.tokenizer.tokenize_str("perhaps it is"))
    texts = {grammar.tokenizer.decode_str(generated(grammar, longest, seed)[0]) for seed in range(40)}
    assert texts == {"no", "yes", "perhaps it is"}


@pytest.mark.parametrize("name", LISTS)
def test_a_resumed_output_is_steered_as_it_was(name: str) -> None:
    fields, max_tokens = LISTS[name]
    grammar = COMPILER.compile(Constraint(**fields))
    tokens, guide = generated(grammar, max_tokens, seed=1)
    for count in range(0, len(tokens), 1 + len(tokens) // 8):
        resumed, other = generated(grammar, max_tokens, 1, tuple(tokens[:count]))
        assert resumed == tokens
        assert other.forced == guide.forced


class Counting:
    """A matcher, and its copies, that count what is asked of them."""

    def __init__(self, matcher: LLMatcher, counts: dict[str, int]) -> None:
        self._matcher = matcher
        self._counts = counts

    def deep_copy(self) -> Counting:
        self._counts["calls"] += 1
        return Counting(self._matcher.deep_copy(), self._counts)

    def validate_tokens(self, tokens: list[int]) -> int:
        self._counts["calls"] += 1
        valid = self._matcher.validate_tokens(tokens)
        self._counts["tokens"] += valid
        return valid

    def __getattr__(self, name: str) -> Any:
        self._counts["calls"] += 1
        return getattr(self._matcher, name)


def counted(fields: dict[str, Any], spare: int) -> tuple[list[dict[str, int]], int]:
    """What each token of an output took with so many more than the shortest has, and how many that has."""
    plain = COMPILER.compile(Constraint(**fields))
    counts = {"calls": 0, "tokens": 0}
    grammar = Grammar(plain.matcher(), plain.matcher, plain.tokenizer, [plain.closing])
    grammar._start = Counting(plain.matcher(), counts)  # type: ignore[assignment]
    shortest = len(grammar.shortest or ())
    guide, taken = Guide(grammar, Ends(eos=[1], stops=[], ignore_eos=True)), []
    left = shortest + spare
    while left and not guide.is_over:
        token = guide.choose(random.Random(left).randrange(2**32))
        before = dict(counts)
        left -= guide.take(token, left - 1)
        taken.append({name: counts[name] - before[name] for name in counts})
    assert guide.may_end
    return taken, shortest


@pytest.mark.parametrize("kind", ["string", "integer"])
@pytest.mark.parametrize("spare", [0, 40, 400])
def test_a_token_takes_bounded_work_however_long_the_way_to_the_end(kind: str, spare: int) -> None:
    for properties in (5, 60):
        taken, shortest = counted({"json_schema": record(properties, type=kind)}, spare)
        assert sum(each["calls"] for each in taken) <= 40 * len(taken)
        assert max(each["calls"] for each in taken) <= 2000
        assert max(each["tokens"] for each in taken) <= 3 * shortest + 2000


def test_a_search_in_vain_is_bounded() -> None:
    """Behind the opening of a thing that takes more than is looked at."""
    schema = {"type": "object", "properties": {"a": record(300, type="boolean")}, "additionalProperties": False}
    taken, _ = counted({"json_schema": schema}, 100)
    assert max(each["calls"] for each in taken) <= 4000
