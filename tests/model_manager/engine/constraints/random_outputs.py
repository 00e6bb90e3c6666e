"""Outputs of a model that has no idea, any token that is allowed as likely, held and steered as the engine does it."""

from __future__ import annotations

import random

from model_manager.engine.constraints.ends import Ends
from model_manager.engine.constraints.grammar import Grammar
from model_manager.engine.constraints.guide import Guide


def random_output(grammar: Grammar, seed: int, most: int) -> str:
    """A whole output, of up to `most` tokens more than the shortest has; raises ConstraintNotMet where none comes."""
    source = random.Random(seed)
    guide = Guide(grammar, Ends(eos=grammar.tokenizer.eos_tokens, stops=[], ignore_eos=False))
    max_tokens = most + len(grammar.shortest or ())
    tokens: list[int] = []
    while len(tokens) < max_tokens and not guide.is_over:
        token = guide.choose(source.randrange(2**32))
        if not guide.take(token, max_tokens - len(tokens) - 1):
            continue
        if guide.has_ended:
            break
        tokens.append(token)
    guide.check_end("there are no tokens left")
    return grammar.tokenizer.decode_bytes(tokens).decode("utf-8")
