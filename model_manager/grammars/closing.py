"""Closes an output that its budget has cut: a short ending replaces some of its last tokens.

The search runs once, after the last token, so it never refuses a token while the output is generated. `endings.py`
says which endings an output may get; if none of them is found, the output stays cut. This module knows what a matcher
allows next, and the literals of the grammar. It knows nothing else of the grammar.

A beam search over bytes first tries bytes that close something: literals, brackets, quotes, separators. Inside text
that may not end yet, it tries the longest piece that may follow. An ending that it returns is allowed, and the output
may end there. Probably no shorter one exists; that is not proven. The work is limited by the number of states, never by
time, so the result is the same each time.

Single tokens are tried and no masks are made, so the vocabulary's size does not matter. A state costs 20 to 50 µs under
a plain schema, more where the grammar is ambiguous, and a pause of about 0.1 ms.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple, Self

from llguidance import LLMatcher, LLTokenizer

from ..wire.common_beginning import common_beginning
from .endings import Endings

_STRUCTURE = b"}])>;,:\"0-.123456789tnf[{/'|\n ZTaeioubcdghjklmpqrsvwxyzABCDEFGHIJKLMNOPQRSUVWXY<(=_@#$%&*+!?~^`\\\t\r"
"""Bytes in the order in which they are tried: what ends or separates, then values, then the rest."""
_TEXT = b"\"@.-:/\n);>_0<]},'| 1aeioubcdfghjklmnpqrstvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ23456789=(+*[{#$%&!?~^`\\\t\r"
"""The same order, within text."""
_WITHIN_TEXT = b"qZ~"
"""If any of these may come next, the state is within text: in JSON they stand in strings only."""
_FREE = b"qZ~#j ;"
"""If all of these may come next, the text is free, or almost."""
_LONGEST_FILLER = 24

_LESS_LIKELY = 0.5
"""Cost of a step for each step that is tried before it."""
_NO_FURTHER = 0.7
"""Cost of a step that leads to the same next steps as before."""
_TOO_DEAR = 50.0
"""Cost above which a path leads nowhere."""

_MOST_STATES = 2_000
"""States of one search, at most."""
_STATES, _STATES_A_TOKEN = 20, 8
"""States of one search from one place at each effort, at most: a fixed number, and so many more for each token left."""
_BYTES_A_STATE = 256
"""Bytes of forced text that count as one state."""
_LONGEST_WAY = 4096
_ASIDE = 0.00005
"""Seconds that the thread sleeps after each state: the engine's loop runs in another thread and needs the interpreter.
"""
_SMALL_STEP = 4
"""Tokens that are dropped one by one; after these the step grows by this part of itself."""


class _Effort(NamedTuple):
    """Limits of a search."""

    beam: int
    """States that are followed at once."""
    tried: int
    """Steps that are tried from each state."""


_EFFORTS = (_Effort(3, 3), _Effort(1, 1))
"""Tried in this order until one finds an ending; the second follows a single path."""


_OF_BYTES = Endings(is_json=False)


class _SearchBudget:
    """How many states a search may still visit."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, states: int) -> None:
        """Count `states` as visited, and sleep a moment."""
        self.left -= states
        time.sleep(_ASIDE)


class Closed(NamedTuple):
    """An output that was brought to its end."""

    num_kept: int
    """How many of its own tokens are kept."""
    way: list[int]
    """Tokens that follow the kept ones; after these the output may end."""


@dataclass
class _State:
    """A state that the search has reached."""

    matcher: LLMatcher
    path: bytes
    cost: float
    steps: list[bytes]
    """Steps to try next; first the one that is likeliest to end the output."""
    least_bytes: int
    """Least bytes of an ending through this state: its path, and what is forced next."""


@dataclass(frozen=True)
class _Pieces:
    """The token of each byte that has its own token, and one word of each length, the longest first."""

    of_byte: dict[int, int]
    not_ascii: list[int]
    fillers: list[bytes]
    longest: int
    """Bytes of the longest token."""

    @classmethod
    def of(cls, tokenizer: LLTokenizer) -> Self:
        tokens = (token for token in range(tokenizer.vocab_size) if not tokenizer.is_special_token(token))
        pieces = [(token, tokenizer.decode_bytes([token])) for token in tokens]
        by_length = {len(piece): piece for _, piece in pieces if piece.isalpha() and piece.islower()}
        fillers = [by_length[length] for length in sorted(by_length, reverse=True) if 1 < length <= _LONGEST_FILLER]
        of_byte = {piece[0]: token for token, piece in reversed(pieces) if len(piece) == 1}
        longest = max((len(piece) for _, piece in pieces), default=1)
        return cls(of_byte, [byte for byte in of_byte if byte >= 0x80], fillers, longest)


class Closing:
    """Closes outputs in one tokenizer's tokens; any thread may call it, with a matcher of its own."""

    def __init__(
        self,
        tokenizer: LLTokenizer,
        endings: Endings = _OF_BYTES,
        pieces: _Pieces | None = None,
        literals: Sequence[str] = (),
    ) -> None:
        """Reads the vocabulary, unless its `pieces` are given."""
        self._tokenizer = tokenizer
        self._end = tokenizer.eos_token
        self._pieces = pieces or _Pieces.of(tokenizer)
        self._endings = endings
        self._literals = [text.encode() for text in literals]

    def towards(self, endings: Endings, literals: Sequence[str]) -> Closing:
        """The same for a grammar that takes these endings and contains these literals."""
        return Closing(self._tokenizer, endings, self._pieces, literals)

    def close(self, matcher: LLMatcher, tokens: Sequence[int], max_tokens: int, least_kept: int = 0) -> Closed | None:
        """The latest place found at which to cut an output, and an ending from there, within `max_tokens` in all; None
        if no ending is found. The first `least_kept` tokens are kept.

        `matcher` has consumed the output's `tokens`; it does not move.
        """
        if not self._endings.may_accept(_StateAfter(self, matcher, b"")):
            return None
        budget, refused = _SearchBudget(_MOST_STATES), len(tokens)
        for kept in _places(len(tokens), least_kept):
            way = self._ending(matcher, tokens, kept, max_tokens, budget)
            if way is not None:
                return self._later(matcher, tokens, max_tokens, Closed(kept, way), refused, budget)
            if budget.left <= 0:
                return None
            refused = kept
        return None

    def shortest(self, start: LLMatcher) -> int | None:
        """About how many tokens the shortest output has; None if no end is found."""
        way = self._way(start, _LONGEST_WAY, _SearchBudget(_MOST_STATES))
        return None if way is None else len(way)

    def _later(
        self,
        matcher: LLMatcher,
        tokens: Sequence[int],
        max_tokens: int,
        found: Closed,
        refused: int,
        budget: _SearchBudget,
    ) -> Closed:
        """Binary search between `found` and `refused` for a place that keeps more."""
        while refused - found.num_kept > 1 and budget.left > 0:
            kept = (refused + found.num_kept) // 2
            way = self._ending(matcher, tokens, kept, max_tokens, budget)
            if way is None:
                refused = kept
            else:
                found = Closed(kept, way)
        return found

    def _ending(
        self, matcher: LLMatcher, tokens: Sequence[int], kept: int, max_tokens: int, budget: _SearchBudget
    ) -> list[int] | None:
        """An ending after the kept tokens that changes nothing that the output has said."""
        start = matcher.deep_copy()
        start.rollback(len(tokens) - kept)
        way = self._way(start, max_tokens - kept, budget)
        if way is None:
            return None
        decode = self._tokenizer.decode_bytes
        said, given_up, instead = (decode(list(each)) for each in (tokens[:kept], tokens[kept:], way))
        same = common_beginning(given_up, instead)
        place = _StateAfter(self, start, instead[:same])
        return way if self._endings.accepts(said + instead[:same], given_up[same:], instead[same:], place) else None

    def after(self, start: LLMatcher, text: bytes) -> LLMatcher:
        """The state after a text that is allowed."""
        matcher = start.deep_copy()
        matcher.try_consume_tokens(self._tokenizer.tokenize_bytes(text))
        return matcher

    def is_free_text(self, matcher: LLMatcher) -> bool:
        """True if any character may come next, and a closing quote after each."""
        of_byte, quote = self._pieces.of_byte, ord('"')
        if not {quote, *_FREE} <= of_byte.keys():
            return False
        return all(matcher.validate_tokens([of_byte[byte], of_byte[quote]]) == 2 for byte in _FREE)

    def _is_free(self, matcher: LLMatcher) -> bool:
        return len([*self._bytes(matcher, _FREE)]) == len(_FREE)

    def _way(self, start: LLMatcher, most: int, budget: _SearchBudget) -> list[int] | None:
        """A way to the end of at most `most` tokens; None if the search finds none."""
        budget.spend(1)
        most_states = _STATES + _STATES_A_TOKEN * most
        ways = (self._search(start, most, effort, budget, most_states) for effort in _EFFORTS)
        return next((way for way in ways if way is not None and len(way) <= most), None)

    def _last_byte(self, matcher: LLMatcher) -> list[int] | None:
        """A byte after which the output may end."""
        ways = ([token, self._end] for token in self._pieces.of_byte.values())
        return next((way[:1] for way in ways if matcher.validate_tokens(way) == len(way)), None)

    def _search(
        self, matcher: LLMatcher, most: int, effort: _Effort, budget: _SearchBudget, most_states: int
    ) -> list[int] | None:
        until, longest = budget.left - most_states, most * self._pieces.longest
        states = [self._reached(matcher.deep_copy(), b"", 0.0, [], effort.tried)]
        while states:
            found = [self._tokens(matcher, state.path) for state in states if state.matcher.is_accepting()]
            last = None if found else self._last_byte(states[0].matcher)
            if last is not None:
                found = [self._tokens(matcher, states[0].path) + last]
            if found or budget.left <= max(0, until):
                return min(found, key=len, default=None)
            children = (child for state in states for child in self._after(state, effort.tried, budget))
            after = sorted(children, key=attrgetter("cost"))
            states = [state for state in after if state.matcher.is_accepting()] or after[: effort.beam]
            states = [state for state in states if state.cost < _TOO_DEAR and state.least_bytes <= longest]
        return None

    def _after(self, state: _State, tried: int, budget: _SearchBudget) -> Iterator[_State]:
        for rank, step in enumerate(state.steps):
            budget.spend(1 + len(step) // _BYTES_A_STATE)
            matcher = state.matcher.deep_copy()
            tokens = self._tokenizer.tokenize_bytes(step)
            if matcher.try_consume_tokens(tokens) == len(tokens) and not matcher.is_error():
                cost = state.cost + _LESS_LIKELY * rank
                yield self._reached(matcher, state.path + step, cost, state.steps, tried)

    def _reached(self, matcher: LLMatcher, path: bytes, cost: float, before: list[bytes], tried: int) -> _State:
        forced = matcher.compute_ff_bytes()
        steps = [forced] if forced else list(islice(self._steps(matcher), tried))
        return _State(matcher, path, cost + _NO_FURTHER * (steps == before), steps, len(path) + len(forced))

    def _steps(self, matcher: LLMatcher) -> Iterator[bytes]:
        """Steps to try next."""
        if not any(self._bytes(matcher, _WITHIN_TEXT)):
            yield from _one_of_each(self._bytes(matcher, chain(_STRUCTURE, self._pieces.not_ascii)))
            return
        yield from self._allowed(matcher, self._literals)
        if not any(self._bytes(matcher, b'"')) and self._is_free(matcher):
            yield from islice(self._allowed(matcher, self._pieces.fillers), 1)
        yield from _one_of_each(self._bytes(matcher, chain(_TEXT, self._pieces.not_ascii)))

    def _bytes(self, matcher: LLMatcher, candidates: Iterable[int]) -> Iterator[bytes]:
        """The given bytes that may come next."""
        for byte in candidates:
            token = self._pieces.of_byte.get(byte)
            if token is not None and matcher.validate_tokens([token]) == 1:
                yield bytes([byte])

    def _allowed(self, matcher: LLMatcher, texts: list[bytes]) -> Iterator[bytes]:
        """The given texts that may come next."""
        for text in texts:
            tokens = self._tokenizer.tokenize_bytes(text)
            if matcher.validate_tokens(tokens) == len(tokens):
                yield text

    def _tokens(self, matcher: LLMatcher, path: bytes) -> list[int]:
        """The path in the tokenizer's own tokens; byte by byte if the matcher does not take those tokens."""
        tokens = self._tokenizer.tokenize_bytes(path)
        if matcher.validate_tokens(tokens) == len(tokens):
            return tokens
        return [self._pieces.of_byte[byte] for byte in path]


class _StateAfter:
    """The state after a text; computed when first used."""

    def __init__(self, closing: Closing, start: LLMatcher, text: bytes) -> None:
        self._closing, self._start, self._text = closing, start, text

    def is_free_text(self) -> bool:
        return self._closing.is_free_text(self._closing.after(self._start, self._text))

    def forced(self) -> bytes:
        return self._closing.after(self._start, self._text).compute_ff_bytes()

    def is_over_after(self, ending: bytes) -> bool:
        return self._closing.after(self._start, self._text + ending).is_stopped()


def _one_of_each(found: Iterable[bytes]) -> Iterator[bytes]:
    """One digit, one letter and all other bytes in their order; then the other digits and letters."""
    kinds, rest = set[str](), []
    for byte in found:
        kind = "digit" if byte.isdigit() else "letter" if byte.isalpha() else ""
        if kind in kinds:
            rest.append(byte)
        else:
            kinds |= {kind} - {""}
            yield byte
    yield from rest


def _places(num_tokens: int, least: int) -> Iterator[int]:
    """How many tokens to keep: all but one, all but two, and so on in growing strides; at last the least."""
    back = 1
    while back < num_tokens - least:
        yield num_tokens - back
        back += max(1, back // _SMALL_STEP)
    if least <= num_tokens:
        yield least
