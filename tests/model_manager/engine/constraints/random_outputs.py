"""Random outputs: each allowed token is equally likely."""

from __future__ import annotations

import random
from pathlib import Path

from millrace.model_manager.grammars.closing import _SearchBudget
from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.grammars.guide import Ends, Guide

FOLDER = Path(__file__).parents[4] / "model_manager" / "store" / "embedded" / "millrace-tiny"
COMPILER = GrammarCompiler(FOLDER, 2000, [1])


def generated(grammar: Grammar, max_tokens: int, seed: int) -> tuple[list[int], Guide]:
    """An output's tokens up to where its grammar ends it or there are no more; raises ConstraintNotMet where the
    grammar has become too complex.
    """
    guide = Guide(grammar, Ends(eos=grammar.tokenizer.eos_tokens, stops=[], ignore_eos=False))
    tokens: list[int] = []
    while len(tokens) < max_tokens and not guide.is_over:
        token = guide.choose(random.Random(f"{seed} {len(tokens)}").randrange(2**32))
        guide.take(token)
        if guide.has_ended:
            break
        tokens.append(token)
    return tokens, guide


def random_output(grammar: Grammar, seed: int, most: int) -> str | None:
    """A whole output whose first tokens are random, at most so many: where it has not ended, any ending that is found
    follows the latest place that has one. None if none is found.
    """
    tokens, guide = generated(grammar, most, seed)
    if guide.may_end:
        return text(grammar, tokens)
    for kept in range(len(tokens), -1, -4):
        start = guide.matcher.deep_copy()
        start.rollback(len(tokens) - kept)
        ending = grammar._closing._way(start, 1000, _SearchBudget(1000))
        if ending is not None:
            return text(grammar, tokens[:kept] + ending)
    return None


def text(grammar: Grammar, tokens: list[int]) -> str:
    """The text of a whole output."""
    return grammar.tokenizer.decode_bytes(tokens).decode("utf-8")
