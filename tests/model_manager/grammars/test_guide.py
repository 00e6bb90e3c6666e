"""The last tokens alone tell whether an output may end before or behind a string in it. A grammar that fails at a
token says so.
"""

from __future__ import annotations

import random
import re

import pytest

from millrace.model_manager.grammars.guide import Ends, Guide
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConstraintNotMet, InvalidRequest
from tests.model_manager.engine.constraints.random_outputs import COMPILER

PATTERN = "([a-cé]{3})*|[a-cé]*bb"
MOST = 24


@pytest.mark.parametrize("string", ["a", "bc", "cab", "é", "aé"])
@pytest.mark.parametrize("included", [False, True])
def test_an_output_may_end_at_a_string_where_its_text_up_to_there_is_whole(string: str, included: bool) -> None:
    grammar = COMPILER.compile(Constraint(regex=PATTERN))
    decode, told = grammar.tokenizer.decode_str, set()
    for seed in range(40):
        guide, tokens = Guide(grammar, Ends(eos=[1], stops=[], ignore_eos=True)), list[int]()
        while len(tokens) < MOST and not guide.is_over:
            token = guide.choose(random.Random(f"{seed} {len(tokens)}").randrange(2**32))
            guide.take(token)
            tokens.append(token)
            text, before = decode(tokens), decode(tokens[:-1]).rstrip("\ufffd")
            at = text.find(string, max(0, len(before) - len(string) + 1))
            if at >= 0:
                expected = re.fullmatch(PATTERN, text[: at + len(string) * included]) is not None
                last = tokens[-len(string.encode()) - 1 :]
                assert guide.may_end_at(string, last, included=included) == expected, (text, at)
                told.add(expected)
    assert told == {True, False}


def test_a_broken_character_is_no_string_to_end_at() -> None:
    guide = Guide(COMPILER.compile(Constraint(regex=PATTERN)), Ends(eos=[1], stops=[], ignore_eos=True))
    token = guide.choose(0)
    guide.take(token)
    assert not guide.may_end_at("\ufffd", [token], included=False)


ENDLESS = {"type": "array", "items": {"$ref": "#/$defs/endless"}, "minItems": 1}


def test_a_constraint_that_forces_an_output_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"constraint\.json_schema: takes one that makes a smaller automaton"):
        COMPILER.compile(Constraint(json_schema={"$ref": "#/$defs/endless", "$defs": {"endless": ENDLESS}}))


def test_an_output_without_end_takes_too_many_states() -> None:
    schema = {"anyOf": [{"$ref": "#/$defs/endless"}, {"type": "null"}], "$defs": {"endless": ENDLESS}}
    guide = Guide(COMPILER.compile(Constraint(json_schema=schema)), Ends(eos=[1], stops=[], ignore_eos=True))
    with pytest.raises(ConstraintNotMet) as failed:
        _go_on(guide)
    assert re.fullmatch(
        r"after (1 token|\d+ tokens) of output: the constraint takes too many states", str(failed.value)
    )


def _go_on(guide: Guide) -> None:
    for _ in range(20_000):
        guide.take(guide.choose(0))
