"""Bringing an output to its end in time: no token is taken after which what is left would not do.

While an output is generated a way to its end (closing.py) is in hand, and each token is looked at: one of the way
leaves the rest of it; behind one of a text, or of a number, it is a way as it was; and behind one that opens something
a few more tokens lead to it. A token behind which no way is found, or none that is short enough, is refused, and the
first of the way comes instead. So what has a way at its start comes to its end, but for parts begun while there were
very many tokens left, behind which no way is found, or that lengthen it by more than is reckoned with, unseen.

All of that depends on the tokens so far and on how many are left, and on nothing else: neither time nor company, nor
which engine it was that generated them. Knows token ids and a matcher; not what is done with its answers.
"""

from __future__ import annotations

from typing import NamedTuple

from llguidance import LLMatcher

from model_manager.engine.constraints.closing import Closing

_LOOK_EACH = 16
"""Tokens on end for which a glance at the way may do: it misses one that opens what is open already."""
_GROWTH = 64
"""How much longer the way becomes with such a token at the most, unless it became longer at one before."""
_AMPLE = 256
"""With more to spare, a token may be taken behind which no way is found: there is time to find one later."""
_RETRY = 8
"""Without a way, one is looked for each so many tokens."""


class _Way(NamedTuple):
    """Tokens to the end, as they were that many tokens ago."""

    tokens: list[int]
    age: int


class Steering:
    """The way to the end from where one output stands."""

    __slots__ = ("_closing", "_growth", "_way")

    def __init__(self, closing: Closing, first: list[int] | None) -> None:
        """`first` is the shortest way from the start, None if none was found."""
        self._closing = closing
        self._growth = _GROWTH
        self._way = None if first is None else _Way(first, 0)

    @property
    def instead(self) -> int | None:
        """The token to take in place of one that was refused; None to end the output here."""
        assert self._way is not None
        return self._way.tokens[0] if self._way.tokens else None

    def moved(self, matcher: LLMatcher, token_id: int, left: int) -> bool:
        """Whether `left` tokens suffice after this one, which the matcher has taken; if not, nothing is noted."""
        if self._way is None:
            found = self._closing.onward(matcher, [], left) if left % _RETRY == 0 else None
            self._way = _Way(found, 0) if found is not None and len(found) <= left else None
            return True
        way = self._way_after(self._way, matcher, token_id, left)
        is_refused = self._spare(self._way, left) <= _AMPLE if way is None else len(way.tokens) > left
        if is_refused:
            self._way = self._way if self._way.age == 0 else self._way_before(self._way, matcher, left)
            return False
        self._way = way
        return True

    def lost(self) -> None:
        """A token was taken that would have been refused."""
        self._way = None

    def _way_after(self, way: _Way, matcher: LLMatcher, token_id: int, left: int) -> _Way | None:
        follows = way.tokens[:1] == [token_id]
        rest = _Way(way.tokens[1:] if follows else way.tokens, way.age + 1)
        if follows and way.age == 0:
            return rest._replace(age=0)
        is_ample = rest.age < _LOOK_EACH and self._spare(rest, left) > 0
        if is_ample and self._closing.seems_to_lead(matcher, rest.tokens):
            return rest
        found = self._closing.onward(matcher, rest.tokens, left)
        if found is None:
            return None
        self._growth = max(self._growth, len(found) - len(rest.tokens))
        return _Way(found, 0)

    def _way_before(self, way: _Way, matcher: LLMatcher, left: int) -> _Way:
        """The way from before the last token, which is refused, looked for anew."""
        before = matcher.deep_copy()
        before.rollback(1)
        found = self._closing.onward(before, way.tokens, left + 1)
        return way if found is None else _Way(found, 0)

    def _spare(self, way: _Way, left: int) -> int:
        """How many of the tokens that are left the way does not take, however much longer it may have become."""
        return left - len(way.tokens) - way.age * self._growth
