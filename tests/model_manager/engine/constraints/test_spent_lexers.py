"""A grammar whose lexer has come to its limit goes on with a new one: whose rows used it before has no say in a row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from millrace.model_manager.engine.constraints.masks import Masks
from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.grammars.guide import Ends, Guide
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConstraintNotMet
from tests.model_manager.engine.constraints.random_outputs import FOLDER, generated

ITEM = "a.{40}b.*c.{30}d$"
ITEMS = Constraint(json_schema={"type": "array", "items": {"type": "string", "pattern": ITEM}})
TERMINALS = Constraint(grammar="start: (A|B|C)*\nA: /.*a.{24}/\nB: /.*b.{24}/\nC: /.*c.{24}/")
BOTH = pytest.mark.parametrize("constraint", [ITEMS, TERMINALS], ids=["schema", "grammar"])


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(FOLDER, 2000, [1])


def outcome(grammar: Grammar, seed: int) -> Any:
    """The tokens of a random row and the forced tokens among them, or why there are none."""
    try:
        tokens, guide = generated(grammar, 200, seed)
    except ConstraintNotMet as error:
        return str(error)
    return tokens, guide.forced


def spend(grammar: Grammar) -> None:
    """Have the lexer that the grammar's matchers share come to its limit."""
    start, seeds = grammar.start(), iter(range(100))
    while not grammar.is_spent(start):
        follow(start.deep_copy(), np.random.default_rng(next(seeds)))


def follow(matcher: LLMatcher, source: np.random.Generator) -> None:
    """Take random tokens, but for the one that would end the output."""
    for _ in range(300):
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        allowed = allowed[allowed != 1]
        if not len(allowed) or not matcher.consume_token(int(source.choice(allowed))):
            return


@BOTH
def test_a_row_is_what_it_is_alone_whoever_used_the_grammar_before(constraint: Constraint) -> None:
    seeds = range(3)
    alone = [outcome(GrammarCompiler(FOLDER, 2000, [1]).compile(constraint), seed) for seed in seeds]
    shared = GrammarCompiler(FOLDER, 2000, [1])
    for _ in range(2):
        for seed in seeds:
            assert outcome(shared.compile(constraint), seed) == alone[seed]
        spend(shared.compile(constraint))
    assert any(isinstance(each, tuple) for each in alone)


def begun(grammar: Grammar, tokens: list[int]) -> Guide:
    """A row with these tokens."""
    guide = Guide(grammar, Ends(eos=[1], stops=[], ignore_eos=True))
    for token in tokens:
        guide.take_again(token)
    return guide


def some_tokens(grammar: Grammar) -> list[int]:
    """The beginning of a long output."""
    guide, source, tokens = begun(grammar, []), np.random.default_rng(1), list[int]()
    while len(tokens) < 60:
        token = guide.choose(int(source.integers(2**32)))
        guide.take(token)
        tokens.append(token)
    return tokens


@BOTH
def test_a_row_under_way_survives(compiler: GrammarCompiler, constraint: Constraint) -> None:
    grammar = compiler.compile(constraint)
    tokens = some_tokens(grammar)
    for count in range(0, len(tokens), 15):
        guide = begun(grammar, tokens[:count])
        spend(grammar)
        for token in tokens[count:]:
            guide.take(token)
        assert guide.forced == begun(grammar, tokens).forced
        assert guide.certain == begun(grammar, tokens).certain


@BOTH
def test_a_mask_of_a_spent_lexer_is_made_again(compiler: GrammarCompiler, constraint: Constraint) -> None:
    """As the engine makes them: of several rows at once."""
    grammar, masks = compiler.compile(constraint), Masks(2, 2000)
    tokens = some_tokens(grammar)
    rows: list[Any] = [SimpleNamespace(guide=begun(grammar, tokens[: 5 + row]), row=row) for row in range(2)]
    expected = masks.of(rows).copy()
    spend(grammar)
    for row in rows:
        row.guide.mask = None
    assert (masks.of(rows) == expected).all()


def test_what_takes_too_many_states_alone_says_so(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, limits = compiler.compile(ITEMS), LLParserLimits(max_lexer_states=600)
    source = LLMatcher.grammar_from_regex("(?s:.*)a.{40}b.*c.{30}d")

    def build() -> LLMatcher:
        return LLMatcher(plain.tokenizer, source, log_level=0, limits=limits)

    def grammar() -> Grammar:
        return Grammar("constraint.regex", build(), build, plain.tokenizer, plain._closing)

    outcomes = [outcome(grammar(), seed) for seed in range(4)]
    assert any("takes too many states" in each for each in outcomes)
    shared = grammar()
    assert [outcome(shared, seed) for seed in range(4)] == outcomes
    monkeypatch.setattr(Grammar, "is_slow", property(lambda _: True))
    assert [outcome(grammar(), seed) for seed in range(4)] == outcomes
