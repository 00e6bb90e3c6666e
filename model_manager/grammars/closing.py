"""How an output that its budget has cut is brought to an end: some of its last tokens give way to a short ending.

Searched once, after the last token, so no token of an output was ever refused for it. Which endings an output may get
endings.py says; where none of them is found the output stays cut. Knows what a matcher allows next and nothing of the
grammar behind it but literals that stand in it. From a place a beam search over bytes tries first what ends things:
literals, brackets, quotes, separators; in text that may not end yet, the longest piece that may follow. An ending that
it returns is allowed and ends where the output may end; that no shorter one exists is likely, not proven.

Work is limited by the number of states that are looked at, never by time, so the same is found each time. Single tokens
are tried and no masks are made, so the size of the vocabulary does not matter. A state costs 20 to 50 µs under a plain
schema, more where the grammar is ambiguous, and a pause of about 0.1 ms.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, Self

from llguidance import LLMatcher, LLTokenizer

from ..wire.common_beginning import common_beginning
from .endings import Endings

_STRUCTURE = b"}])>;,:\"0-.123456789tnf[{/'|\n ZTaeioubcdghjklmpqrsvwxyzABCDEFGHIJKLMNOPQRSUVWXY<(=_@#$%&*+!?~^`\\\t\r"
"""Bytes in the order in which they are tried: what ends or separates, then values, then the rest."""
_TEXT = b"\"@.-:/\n);>_0<]},'| 1aeioubcdfghjklmnpqrstvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ23456789=(+*[{#$%&!?~^`\\\t\r"
"""The same within text."""
_WITHIN_TEXT = b"qZ~"
"""Where any of these may come next the state is within text: they do not stand in JSON outside strings."""
_FREE = b"qZ~#j ;"
"""Where all of these may, the text is free, or as good as free."""
_LONGEST_FILLER = 24

_LESS_LIKELY = 0.5
"""The cost of a step for each that was to be tried before it."""
_NO_FURTHER = 0.7
"""The cost of a step after which the same steps are to be tried as before."""
_TOO_DEAR = 50.0
"""A cost that shows that a way leads nowhere."""

_MOST_STATES = 2_000
"""Looked at for one output."""
_STATES, _STATES_A_TOKEN = 20, 8
"""Looked at from one place at each effort: so many, and so many more for each token that a way may have."""
_BYTES_A_STATE = 256
"""Of a piece that is forced, which count as much as a state does."""
_LONGEST_WAY = 4096
_ASIDE = 0.00005
"""Seconds that the thread steps aside after each state: the engine's loop runs in another and needs the interpreter."""
_SMALL_STEP = 4
"""Tokens that are given up one by one; then the number grows by this part of itself."""


class _Effort(NamedTuple):
    """What a search may take."""

    beam: int
    """States that are followed at a time."""
    tried: int
    """Steps that are tried from each."""


_EFFORTS = (_Effort(3, 3), _Effort(1, 1))
"""One after another, until one finds a way; the second goes straight on."""


_OF_BYTES = Endings(is_json=False)


class _Work:
    """How many states may still be looked at."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, states: int) -> None:
        """So many are looked at."""
        self.left -= states
        time.sleep(_ASIDE)


class Closed(NamedTuple):
    """An output that was brought to its end."""

    num_kept: int
    """Of its own tokens."""
    way: list[int]
    """Tokens behind those, after which it may end."""


@dataclass
class _State:
    """A state that the search has reached."""

    matcher: LLMatcher
    path: bytes
    cost: float
    steps: list[bytes]
    """To be tried next, the likeliest to end it first."""
    least_bytes: int
    """Of a way through it: those of its path, and those that are forced next."""


@dataclass(frozen=True)
class _Pieces:
    """The token of each byte that has one of its own, and a word of each length, the longest first."""

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
        """Reads the vocabulary, unless its `pieces` are there."""
        self._tokenizer = tokenizer
        self._end = tokenizer.eos_token
        self._pieces = pieces or _Pieces.of(tokenizer)
        self._endings = endings
        self._literals = [text.encode() for text in literals]

    def towards(self, endings: Endings, literals: Sequence[str]) -> Closing:
        """The same for outputs of a grammar that takes these endings, and in which these literals stand."""
        return Closing(self._tokenizer, endings, self._pieces, literals)

    def close(self, matcher: LLMatcher, tokens: Sequence[int], max_tokens: int) -> Closed | None:
        """Where to leave an output, as late as is found, and an ending from there within `max_tokens` in all; None if
        none is found. `matcher` has taken the output's `tokens`, and stays where it is.
        """
        if not self._endings.may_accept(_Place(self, matcher, b"")):
            return None
        work, refused = _Work(_MOST_STATES), len(tokens)
        for kept in _places(len(tokens)):
            way = self._ending(matcher, tokens, kept, max_tokens, work)
            if way is not None:
                return self._later(matcher, tokens, max_tokens, Closed(kept, way), refused, work)
            if work.left <= 0:
                return None
            refused = kept
        return None

    def shortest(self, start: LLMatcher) -> int | None:
        """About how many tokens the shortest output has; None if no end is found."""
        way = self._way(start, _LONGEST_WAY, _Work(_MOST_STATES))
        return None if way is None else len(way)

    def _later(
        self, matcher: LLMatcher, tokens: Sequence[int], max_tokens: int, found: Closed, refused: int, work: _Work
    ) -> Closed:
        """Binary search between `found` and `refused` for a place that keeps more."""
        while refused - found.num_kept > 1 and work.left > 0:
            kept = (refused + found.num_kept) // 2
            way = self._ending(matcher, tokens, kept, max_tokens, work)
            if way is None:
                refused = kept
            else:
                found = Closed(kept, way)
        return found

    def _ending(
        self, matcher: LLMatcher, tokens: Sequence[int], kept: int, max_tokens: int, work: _Work
    ) -> list[int] | None:
        """From behind the tokens that are kept, one that says nothing else than the output does."""
        start = matcher.deep_copy()
        start.rollback(len(tokens) - kept)
        way = self._way(start, max_tokens - kept, work)
        if way is None:
            return None
        decode = self._tokenizer.decode_bytes
        said, given_up, instead = (decode(list(each)) for each in (tokens[:kept], tokens[kept:], way))
        same = common_beginning(given_up, instead)
        place = _Place(self, start, instead[:same])
        return way if self._endings.accepts(said + instead[:same], given_up[same:], instead[same:], place) else None

    def after(self, start: LLMatcher, text: bytes) -> LLMatcher:
        """The state behind a text that is allowed."""
        matcher = start.deep_copy()
        matcher.try_consume_tokens(self._tokenizer.tokenize_bytes(text))
        return matcher

    def is_free_text(self, matcher: LLMatcher) -> bool:
        """Whether any character may come next, and a closing quote behind each."""
        of_byte, quote = self._pieces.of_byte, ord('"')
        if not {quote, *_FREE} <= of_byte.keys():
            return False
        return all(matcher.validate_tokens([of_byte[byte], of_byte[quote]]) == 2 for byte in _FREE)

    def _is_free(self, matcher: LLMatcher) -> bool:
        return len([*self._bytes(matcher, _FREE)]) == len(_FREE)

    def _way(self, start: LLMatcher, most: int, work: _Work) -> list[int] | None:
        """At most so many tokens to the end."""
        work.spend(1)
        most_states = _STATES + _STATES_A_TOKEN * most
        ways = (self._search(start, most, effort, work, most_states) for effort in _EFFORTS)
        return next((way for way in ways if way is not None and len(way) <= most), None)

    def _last_byte(self, matcher: LLMatcher) -> list[int] | None:
        """A byte after which the output may end."""
        ways = ([token, self._end] for token in self._pieces.of_byte.values())
        return next((way[:1] for way in ways if matcher.validate_tokens(way) == len(way)), None)

    def _search(
        self, matcher: LLMatcher, most: int, effort: _Effort, work: _Work, most_states: int
    ) -> list[int] | None:
        until, longest = work.left - most_states, most * self._pieces.longest
        states = [self._reached(matcher.deep_copy(), b"", 0.0, [], effort.tried)]
        while states:
            found = [self._tokens(matcher, state.path) for state in states if state.matcher.is_accepting()]
            last = None if found else self._last_byte(states[0].matcher)
            if last is not None:
                found = [self._tokens(matcher, states[0].path) + last]
            if found or work.left <= max(0, until):
                return min(found, key=len, default=None)
            after = sorted((child for state in states for child in self._after(state, effort.tried, work)), key=_cost)
            states = [state for state in after if state.matcher.is_accepting()] or after[: effort.beam]
            states = [state for state in states if state.cost < _TOO_DEAR and state.least_bytes <= longest]
        return None

    def _after(self, state: _State, tried: int, work: _Work) -> Iterator[_State]:
        for rank, step in enumerate(state.steps):
            work.spend(1 + len(step) // _BYTES_A_STATE)
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
        """What may be tried next."""
        if not any(self._bytes(matcher, _WITHIN_TEXT)):
            yield from _one_of_each(self._bytes(matcher, chain(_STRUCTURE, self._pieces.not_ascii)))
            return
        yield from self._allowed(matcher, self._literals)
        if not any(self._bytes(matcher, b'"')) and self._is_free(matcher):
            yield from islice(self._allowed(matcher, self._pieces.fillers), 1)
        yield from _one_of_each(self._bytes(matcher, chain(_TEXT, self._pieces.not_ascii)))

    def _bytes(self, matcher: LLMatcher, candidates: Iterable[int]) -> Iterator[bytes]:
        """Those of the bytes that may come next."""
        for byte in candidates:
            token = self._pieces.of_byte.get(byte)
            if token is not None and matcher.validate_tokens([token]) == 1:
                yield bytes([byte])

    def _allowed(self, matcher: LLMatcher, texts: list[bytes]) -> Iterator[bytes]:
        """Those of the texts that may come next."""
        for text in texts:
            tokens = self._tokenizer.tokenize_bytes(text)
            if matcher.validate_tokens(tokens) == len(tokens):
                yield text

    def _tokens(self, matcher: LLMatcher, path: bytes) -> list[int]:
        """The path in the tokenizer's own tokens; byte by byte, should the matcher not take those."""
        tokens = self._tokenizer.tokenize_bytes(path)
        if matcher.validate_tokens(tokens) == len(tokens):
            return tokens
        return [self._pieces.of_byte[byte] for byte in path]


class _Place:
    """The state behind a text, looked at once something is asked of it."""

    def __init__(self, closing: Closing, start: LLMatcher, text: bytes) -> None:
        self._closing, self._start, self._text = closing, start, text

    def is_free_text(self) -> bool:
        return self._closing.is_free_text(self._closing.after(self._start, self._text))

    def forced(self) -> bytes:
        return self._closing.after(self._start, self._text).compute_ff_bytes()

    def is_over_after(self, ending: bytes) -> bool:
        return self._closing.after(self._start, self._text + ending).is_stopped()


def _one_of_each(found: Iterable[bytes]) -> Iterator[bytes]:
    """A digit, a letter, and all that is neither, in their order; then the other digits and letters."""
    kinds, rest = set[str](), []
    for byte in found:
        kind = "digit" if byte.isdigit() else "letter" if byte.isalpha() else ""
        if kind in kinds:
            rest.append(byte)
        else:
            kinds |= {kind} - {""}
            yield byte
    yield from rest


def _places(num_tokens: int) -> Iterator[int]:
    """How many tokens to keep: all but one, all but two, and so on in ever longer strides, none at last."""
    back = 1
    while back < num_tokens:
        yield num_tokens - back
        back += max(1, back // _SMALL_STEP)
    yield 0


def _cost(state: _State) -> float:
    return state.cost
