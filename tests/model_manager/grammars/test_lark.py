"""Lark grammars of any text are judged in time that grows as the text does, and read as llguidance's own lexer does."""

import contextlib
import time

import pytest
from llguidance import LLMatcher

from millrace.model_manager.grammars.lark import prepared_lark
from millrace.model_manager.wire.errors import InvalidRequest

LARGE = 500_000
"""Characters; what takes the square of them would take minutes."""
MOST_SECONDS = 5.0
"""Seconds of processor time."""
REPEATED = '[ ( { "\\ /\\ " / < /a "a %json %json" %json[" a: :: \\ #'.split()
LEXED = {
    'start: /a\n"/ "b"': True,
    'start: /a\\d/ | "\\"" // "': True,
    'start: "</"\n# "': True,
    "start: /a": False,
    'start: "a\n"': False,
    "start: <a": False,
    'start: "a\\"': False,
    "start: /": False,
    "start: %jsonx": False,
    "start: %json{}": True,
}


@pytest.mark.parametrize("repeated", REPEATED)
@pytest.mark.parametrize("before", ['start: "a"\n', 'start: "a"\nx: '])
def test_a_long_text_is_judged_in_time(before: str, repeated: str) -> None:
    began = time.process_time()
    text = before + repeated * ((LARGE - len(before)) // len(repeated))
    with contextlib.suppress(InvalidRequest):
        prepared_lark(text)
    assert time.process_time() - began < MOST_SECONDS


@pytest.mark.parametrize("grammar", LEXED)
def test_what_has_no_end_is_refused_as_llguidance_would(grammar: str) -> None:
    assert (not LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar))) == LEXED[grammar]
    if LEXED[grammar]:
        prepared_lark(grammar)
    else:
        with pytest.raises(InvalidRequest, match=r"^constraint\.grammar: .*takes "):
            prepared_lark(grammar)


HIDDEN = ['/a\n"/ {} "', '<"> {} <">', "/a\n<{}", '%json {{"a": "\\""}} {} "']


@pytest.mark.parametrize("around", HIDDEN)
@pytest.mark.parametrize("bracket", "([{")
def test_brackets_are_counted_wherever_llguidance_sees_them(around: str, bracket: str) -> None:
    with pytest.raises(InvalidRequest, match=r"at most 800 rules and brackets|one that ends it"):
        prepared_lark('start: "a"\nx: ' + around.format(bracket * 2000))


def test_rules_are_counted_whatever_their_names() -> None:
    rules = "\n".join(f"_{'?' if number % 2 else '!'}R{number} : /a/" for number in range(900))
    with pytest.raises(InvalidRequest, match="at most 800 rules and brackets, got 901"):
        prepared_lark(f'start: "a"\n{rules}')


def test_classes_are_ascii_in_expressions_of_several_lines() -> None:
    assert "\\d" not in prepared_lark("start: /a\n\\d/")


def test_an_attribute_is_found_in_its_own_brackets() -> None:
    for attribute in ("max_tokens", "stop"):
        with pytest.raises(InvalidRequest, match=f"without the attribute {attribute}"):
            prepared_lark(f'start[x, {attribute}=3]: "a"')
    prepared_lark('start: "[max_tokens=3]"')
