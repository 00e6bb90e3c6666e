"""Whole outputs beside their constraints: a grammar is compiled once for many outputs, however long they get."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model_manager.grammars import compiling
from millrace.model_manager.grammars.compiling import allowed, is_output, is_whole
from millrace.model_manager.wire.constraint import Constraint


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were compiled since the test began."""
    sources: list[str] = []
    compile_it = compiling._matcher

    def noted(tokenizer: Any, source: str) -> Any:
        sources.append(source)
        return compile_it(tokenizer, source)

    monkeypatch.setattr(compiling, "_matcher", noted)
    compiling._start.cache_clear()
    return sources


def test_outputs_under_one_constraint_compile_it_once(compiled: list[str]) -> None:
    constraint = Constraint(regex="[a-c]+[0-9]{2}")
    found = [is_output(constraint, text) for text in (b"ab12", b"ab1", b"ab123", b"", b"ca77")]
    assert found == [True, False, False, False, True]
    assert len(compiled) == 1
    assert [is_whole("start: /x+/", text) for text in ("x", "y", "xx")] == [True, False, True]
    assert len(compiled) == 2


def test_a_text_is_allowed_as_far_as_it_was_before(compiled: list[str]) -> None:
    constraint = Constraint(regex="ab+")
    assert [allowed(constraint, text) for text in ("abb", "a", "abx", "x")] == [3, 0, 2, 0]
    assert len(compiled) <= 2  # to check it, and to read the texts


def test_a_long_constraint_is_compiled_for_each_output_and_not_kept(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_MOST_KEPT", 10)
    assert [is_output(Constraint(choice=("first", "second")), b"first") for _ in range(2)] == [True, True]
    assert len(compiled) == 2


def test_outputs_go_on_when_earlier_ones_have_filled_the_lexer(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = compiling._limits

    def few_states(size: int) -> Any:
        found = limits(size)
        found.max_lexer_states = 300
        return found

    monkeypatch.setattr(compiling, "_limits", few_states)
    constraint = Constraint(regex="(.*a.{6}b|.*b.{6}a)[0-9]*")
    outputs = [f"{n:012b}".translate({48: "a", 49: "b"}).encode() for n in range(400)]
    alone = []
    for output in outputs:
        compiling._start.cache_clear()
        alone.append(is_output(constraint, output))
    compiled.clear()
    assert [is_output(constraint, output) for output in outputs] == alone
    assert 1 < len(compiled) < len(outputs)
