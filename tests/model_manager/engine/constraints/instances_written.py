"""Tells whether a grammar takes a JSON value, in whichever order of keys it wants them written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from llguidance import LLMatcher

from millrace.model_manager.grammars.grammar import Grammar

_MOST_TRIED = 20_000
"""Pieces of text: there are more orders of keys than can be tried, and one that fits is found soon."""


def takes(grammar: Grammar, value: Any) -> bool:
    """Whether some compact text of the value is a whole output."""
    writer = _Writer(grammar)
    found = any(matcher.is_accepting() for matcher in writer.after(grammar.matcher(), value))
    assert found or writer.left > 0, "not all ways to write it were tried"
    return found


class _Writer:
    """Ways to write a value; each method yields the matchers after it, one for each way that is allowed."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self.left = _MOST_TRIED

    def after(self, matcher: LLMatcher, value: Any) -> Iterator[LLMatcher]:
        if isinstance(value, dict):
            for opened in self._fed(matcher, "{"):
                yield from self._after_members(opened, value, first=True)
        elif isinstance(value, list):
            for opened in self._fed(matcher, "["):
                yield from self._after_items(opened, value, first=True)
        else:
            for text in _spellings(value):
                yield from self._fed(matcher, text)

    def _after_members(self, matcher: LLMatcher, left: dict[str, Any], *, first: bool) -> Iterator[LLMatcher]:
        """Write the members that are left, in an order that is likely to fit. The keys of a schema come only in its
        order, so a member that rules out another one is tried last. If none rules out another, one order is enough.
        """
        if not left:
            yield from self._fed(matcher, "}")
        allowed = [name for name in left if any(self._fed(matcher, _key(name, first)))]
        hindering: list[tuple[LLMatcher, str]] = []
        for name in allowed:
            known = len(hindering)
            for valued in self._after_member(matcher, name, left[name], first=first):
                others = [other for other in allowed if other != name]
                if all(any(self._fed(valued, _key(other, False))) for other in others):
                    yield from self._after_members(valued, _without(left, name), first=False)
                else:
                    hindering.append((valued, name))
            if len(hindering) == known:  # it may as well come now as later, or never
                return
        for valued, name in hindering:
            yield from self._after_members(valued, _without(left, name), first=False)

    def _after_member(self, matcher: LLMatcher, name: str, value: Any, *, first: bool) -> Iterator[LLMatcher]:
        for named in self._fed(matcher, _key(name, first)):
            yield from self.after(named, value)

    def _after_items(self, matcher: LLMatcher, left: list[Any], *, first: bool) -> Iterator[LLMatcher]:
        if not left:
            yield from self._fed(matcher, "]")
            return
        for separated in [matcher] if first else self._fed(matcher, ","):
            for valued in self.after(separated, left[0]):
                yield from self._after_items(valued, left[1:], first=False)

    def _fed(self, matcher: LLMatcher, text: str) -> Iterator[LLMatcher]:
        self.left -= 1
        copy = matcher.deep_copy()
        tokens = self._grammar.tokenizer.tokenize_str(text)
        if self.left > 0 and copy.try_consume_tokens(tokens) == len(tokens):
            yield copy


def _spellings(value: Any) -> list[str]:
    """The spellings of a scalar: a float also without exponent, and as an integer if it is one."""
    texts = [json.dumps(value, ensure_ascii=False)]
    if isinstance(value, float):
        texts.append(format(Decimal(repr(value)), "f"))
        texts += [str(int(value))] if value.is_integer() else []
    return list(dict.fromkeys(texts))


def _key(name: str, first: bool) -> str:
    return ("" if first else ",") + json.dumps(name, ensure_ascii=False) + ":"


def _without(members: dict[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in members.items() if other != name}
