"""Whole outputs beside their constraints: a grammar is compiled once for many outputs, however long they get."""

from __future__ import annotations

from collections.abc import Callable
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
    assert [is_output(constraint, text) for text in (b"ab12", b"c07", b"ca77")] == [True] * 3
    assert len(compiled) == 1
    assert [is_whole("start: /x+/", text) for text in ("x", "xx")] == [True] * 2
    assert len(compiled) == 2


def test_an_output_that_is_refused_is_looked_at_by_itself(compiled: list[str]) -> None:
    constraint = Constraint(regex="[a-c]+[0-9]{2}")
    assert [is_output(constraint, text) for text in (b"ab1", b"ab123", b"", b"ab12")] == [False] * 3 + [True]
    assert len(compiled) == 1 + 3


def test_a_text_is_allowed_as_far_as_it_was_before(compiled: list[str]) -> None:
    constraint = Constraint(regex="ab+")
    assert [allowed(constraint, text) for text in ("abb", "a", "abx", "x")] == [3, 0, 2, 0]
    assert len(compiled) <= 2 + 3  # to check it, to keep it, and for each text that is not all of an output


def test_a_long_constraint_is_compiled_for_each_output_and_not_kept(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_MOST_KEPT", 10)
    assert [is_output(Constraint(choice=("first", "second")), b"first") for _ in range(2)] == [True, True]
    assert len(compiled) == 2


def test_a_lexer_that_earlier_outputs_have_filled_refuses_no_output(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spent:
        """As a matcher whose lexer is full: it takes nothing, and has no error."""

        def deep_copy(self) -> Spent:
            return self

        def try_consume_tokens(self, _tokens: list[int]) -> int:
            return 0

        def is_accepting(self) -> bool:
            return False

    cleared: list[bool] = []
    monkeypatch.setattr(compiling, "_start", Start(Spent(), lambda: cleared.append(True)))
    assert is_output(Constraint(regex="b+"), b"bb")
    assert (len(compiled), cleared) == (1, [True])
    assert not is_output(Constraint(regex="b+"), b"c")
    assert cleared == [True]


class Start:
    """Stands in for the cache of matchers."""

    def __init__(self, matcher: Any, cache_clear: Callable[[], None]) -> None:
        self._matcher = matcher
        self.cache_clear = cache_clear

    def __call__(self, _source: str) -> Any:
        return self._matcher
