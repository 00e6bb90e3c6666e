"""A short way to the end of a constrained output: tokens after which it may end.

Knows what a matcher allows next, and nothing of the grammar behind it but names and literals that stand in it. A beam
search over bytes: from each state it tries first what ends things (brackets, quotes, separators), names that are
required, literals (and texts that the constraint's patterns match, witness.py), and in text that may not end yet the
longest piece that may follow. Where a way was known a token ago it looks for a connection to that: behind a bracket
that was opened, all but its closing is known. A way that it returns is allowed and ends where the output may end; that
none is shorter is likely, not proven.

What a search takes is limited by the number of states that it looks at, never by time, and so it finds the same each
time. Single tokens are tried and no masks are made, so the size of the vocabulary does not matter. A state costs some
20 µs under a plain schema, but its matcher is copied: more by the length of the output, and milliseconds if ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, Self

from llguidance import LLMatcher, LLTokenizer


class _Effort(NamedTuple):
    """What a search may take."""

    beam: int
    """States that are followed at a time."""
    tried: int
    """Steps that are tried from each."""
    most_states: int


_FROM_THE_START = (_Effort(1, 1, 2400), _Effort(5, 4, 1000), _Effort(8, 99, 1000))
"""One after another, until one finds a way: straight on first. Made once for a grammar, beside the engine's loop."""
_MOST_STATES_ASIDE = 200
"""That are looked at to make the first way shorter."""
_ONWARD = _Effort(1, 1, 128)
"""Within the loop, for a token that left the way: straight on, as far as some 40 names that are required."""
_STEPS_A_TOKEN = 4
"""Steps of a search that one token of what comes of it stands for, at most, as a rule."""
_FURTHEST_JOIN = 16
"""Tokens of the known way that what was taken since may have come in the place of."""
_GLANCE = 4
"""Tokens of a way that show, as a rule, whether it still is one."""

_STRUCTURE = b"}])>;,:\"0-.123456789tnf[{/'|\n ZTaeioubcdghjklmpqrsvwxyzABCDEFGHIJKLMNOPQRSUVWXY<(=_@#$%&*+!?~^`\\\t\r"
"""Bytes in the order in which they are tried: what ends or separates, then values, then the rest."""
_TEXT = b"\"@.-:/\n);>_0<]},'| 1aeioubcdfghjklmnpqrstvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ23456789=(+*[{#$%&!?~^`\\\t\r"
"""The same within text."""
_WITHIN_TEXT = b"qZ~"
"""Where any of these may come next the state is within text: they do not stand in JSON outside strings."""
_FREE = b"qZ~#j ;"
"""Where all of these may, the text is free, or as good as free."""
_LONGEST_FILLER = 24
_MOST_NAMES_BYTES, _LONGEST_NAME = 100_000, 256
"""Of names that are required, whose every beginning is kept."""
_MOST_LITERALS = 32

_LESS_LIKELY = 0.5
"""The cost of a step for each that was to be tried before it."""
_NO_FURTHER = 0.7
"""The cost of a step after which the same steps are to be tried as before."""
_TOO_DEAR = 50.0
"""A cost that shows that a way leads nowhere."""


@dataclass
class _State:
    """A state that the search has reached."""

    matcher: LLMatcher
    path: bytes
    cost: float
    steps: list[bytes]
    """To be tried next, the likeliest to end it first."""


@dataclass(frozen=True)
class _Pieces:
    """Of a vocabulary: the token of each byte that has one of its own, and a word of each length, the longest first."""

    of_byte: dict[int, int]
    not_ascii: list[int]
    fillers: list[bytes]

    @classmethod
    def of(cls, tokenizer: LLTokenizer) -> Self:
        tokens = (token for token in range(tokenizer.vocab_size) if not tokenizer.is_special_token(token))
        pieces = [(token, tokenizer.decode_bytes([token])) for token in tokens]
        by_length = {len(piece): piece for _, piece in pieces if piece.isalpha() and piece.islower()}
        fillers = [by_length[length] for length in sorted(by_length, reverse=True) if 1 < length <= _LONGEST_FILLER]
        of_byte = {piece[0]: token for token, piece in reversed(pieces) if len(piece) == 1}
        return cls(of_byte, [byte for byte in of_byte if byte >= 0x80], fillers)


class Closing:
    """Short ways to the end of outputs in one tokenizer's tokens; any thread may search, with matchers of its own."""

    def __init__(
        self,
        tokenizer: LLTokenizer,
        pieces: _Pieces | None = None,
        names: Iterable[bytes] = (),
        literals: Iterable[bytes] = (),
    ) -> None:
        """Reads the vocabulary, unless its `pieces` are there."""
        self._tokenizer = tokenizer
        self._end = tokenizer.eos_token
        self._pieces = pieces or _Pieces.of(tokenizer)
        self._names = frozenset(name[:end] for name in names for end in range(1, len(name) + 1))
        self._literals = list(literals)
        quote = self._pieces.of_byte.get(ord('"'))
        self._ends_of_text = [self._end] if quote is None else [quote, self._end]

    def towards(self, names: Sequence[str], literals: Sequence[str]) -> Closing:
        """The same for outputs with objects in which these names are required, and with such literals in texts."""
        keys = [name.encode() + b'"' for name in names if len(name) <= _LONGEST_NAME]
        keys = keys if sum(map(len, keys)) <= _MOST_NAMES_BYTES else []
        return Closing(self._tokenizer, self._pieces, keys, [text.encode() for text in literals[:_MOST_LITERALS]])

    def shortest(self, matcher: LLMatcher) -> list[int] | None:
        """The fewest tokens found after which the output may end (the token that ends it is not among them). Empty
        where it may end already; None where no way was found. `matcher` stays where it is.
        """
        ways = (self._search(matcher, [], effort) for effort in _FROM_THE_START)
        found = next((way for way in ways if way is not None), None)
        return found if found is None or len(found) <= _GLANCE else self._shortened(matcher, found)

    def _shortened(self, matcher: LLMatcher, way: list[int]) -> list[int]:
        """The way, or a shorter one that leaves it somewhere for another step, and then goes straight on."""
        path, place, left = self._tokenizer.decode_bytes(way), 0, _MOST_STATES_ASIDE
        at = matcher.deep_copy()
        while place < len(path) - 1 and left > 0:
            aside, looked_at = self._aside(matcher, at, path, place)
            left -= looked_at
            token = self._pieces.of_byte.get(path[place])
            if aside is not None:
                path = aside
            elif token is None or not at.consume_token(token):
                break
            else:
                place += 1
        return min(way, self._tokens(matcher, path), key=len)

    def _aside(self, matcher: LLMatcher, at: LLMatcher, path: bytes, place: int) -> tuple[bytes | None, int]:
        """A path of fewer tokens that leaves another at that place, where `at` is; and how many states that took."""
        looked_at = 1
        if at.compute_ff_bytes():
            return None, looked_at
        fewest = len(self._tokens(matcher, path))
        for step in self._steps(at, path[:place]):
            child, tokens = at.deep_copy(), self._tokenizer.tokenize_bytes(step)
            most = len(path) - place - len(step)
            if most < 0 or path.startswith(step, place) or child.try_consume_tokens(tokens) != len(tokens):
                continue
            rest = self._search(child, [], _Effort(1, 1, most))
            looked_at += most if rest is None else len(rest) + 1
            if rest is not None:
                aside = path[:place] + step + self._tokenizer.decode_bytes(rest)
                if len(self._tokens(matcher, aside)) < fewest:
                    return aside, looked_at
            if looked_at > _MOST_STATES_ASIDE:
                break
        return None, looked_at

    def onward(self, matcher: LLMatcher, known: list[int], limit: int) -> list[int] | None:
        """The same, looked for briefly, where `known` was a way before the last token, or a few; one of more than
        `limit` tokens tells that none was found that is shorter.
        """
        if matcher.is_accepting():
            return []
        joined = self._joined(matcher, known, max(0, len(known) - limit))
        if joined is not None or (len(known) > limit and self.seems_to_lead(matcher, known)):
            return joined or known
        within = _STEPS_A_TOKEN * (limit - len(known) + _FURTHEST_JOIN) if known else _ONWARD.most_states
        return self._search(matcher, known, _ONWARD._replace(most_states=min(within, _ONWARD.most_states)))

    def seems_to_lead(self, matcher: LLMatcher, way: list[int]) -> bool:
        """Whether a way may be one from here, at a glance: it does not see how deep brackets are nested."""
        return self._leads(matcher, way) if len(way) < _GLANCE else matcher.validate_tokens(way[:_GLANCE]) == _GLANCE

    def _leads(self, matcher: LLMatcher, way: list[int]) -> bool:
        return bool(matcher.validate_tokens([*way, self._end]) == len(way) + 1)

    def _search(self, matcher: LLMatcher, known: list[int], effort: _Effort) -> list[int] | None:
        if matcher.is_error():
            return None
        states, looked_at = [self._reached(matcher.deep_copy(), b"", 0.0, [], effort.tried)], 1
        while states:
            ways = (self._way(matcher, state, known) for state in states)
            found = [way for way in ways if way is not None]
            if found or looked_at >= effort.most_states:
                return min(found, key=len, default=None)
            after = sorted((child for state in states for child in self._after(state, effort.tried)), key=_cost)
            looked_at += len(after)
            states = [state for state in after if state.matcher.is_accepting()] or after[: effort.beam]
            states = [state for state in states if state.cost < _TOO_DEAR]
        return None

    def _way(self, matcher: LLMatcher, state: _State, known: list[int]) -> list[int] | None:
        """The way by that state, if from there the end is known; `matcher` is where the search began."""
        if state.matcher.is_accepting():
            return self._tokens(matcher, state.path)
        rest = self._joined(state.matcher, known)
        return None if rest is None else self._tokens(matcher, state.path) + rest

    def _joined(self, matcher: LLMatcher, known: list[int], first: int = 0) -> list[int] | None:
        """The rest of a known way that leads to the end from here, from the `first` of its tokens on or a later one."""
        for start in range(first, min(first + _FURTHEST_JOIN, len(known))):
            rest = known[start:]
            if self.seems_to_lead(matcher, rest) and self._leads(matcher, rest):
                return rest
        return None

    def _after(self, state: _State, tried: int) -> Iterator[_State]:
        for rank, step in enumerate(state.steps):
            matcher = state.matcher.deep_copy()
            tokens = self._tokenizer.tokenize_bytes(step)
            if matcher.try_consume_tokens(tokens) == len(tokens) and not matcher.is_error():
                cost = state.cost + _LESS_LIKELY * rank
                yield self._reached(matcher, state.path + step, cost, state.steps, tried)

    def _reached(self, matcher: LLMatcher, path: bytes, cost: float, before: list[bytes], tried: int) -> _State:
        forced = matcher.compute_ff_bytes()
        steps = [forced] if forced else list(islice(self._steps(matcher, path), tried))
        return _State(matcher, path, cost + _NO_FURTHER * (steps == before), steps)

    def _steps(self, matcher: LLMatcher, path: bytes) -> Iterator[bytes]:
        """What may be tried next."""
        name = _unfinished_name(path)
        if name is None and not any(self._bytes(matcher, _WITHIN_TEXT)):
            yield from self._bytes(matcher, chain(_STRUCTURE, self._pieces.not_ascii))
            return
        order = _TEXT if name is None else sorted(_TEXT, key=lambda byte: name + bytes([byte]) not in self._names)
        singles = self._bytes(matcher, chain(order, self._pieces.not_ascii))
        if any(self._bytes(matcher, b'"')):
            yield from islice(singles, 1)
            yield from self._allowed_literals(matcher)
        else:
            yield from self._allowed_literals(matcher)
            is_free = len([*self._bytes(matcher, _FREE)]) == len(_FREE)
            yield from islice(self._allowed(matcher, self._pieces.fillers if is_free else []), 1)
        yield from singles

    def _bytes(self, matcher: LLMatcher, candidates: Iterable[int]) -> Iterator[bytes]:
        """Those of the bytes that may come next."""
        for byte in candidates:
            token = self._pieces.of_byte.get(byte)
            if token is not None and matcher.validate_tokens([token]) == 1:
                yield bytes([byte])

    def _allowed_literals(self, matcher: LLMatcher) -> Iterator[bytes]:
        """Those that may come next; first those behind which a text, or all, may end."""
        rest = []
        for text in self._literals:
            tokens = self._tokenizer.tokenize_bytes(text)
            if matcher.validate_tokens(tokens) != len(tokens):
                continue
            if any(matcher.validate_tokens([*tokens, end]) > len(tokens) for end in self._ends_of_text):
                yield text
            else:
                rest.append(text)
        yield from rest

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


def _cost(state: _State) -> float:
    return state.cost


def _unfinished_name(path: bytes) -> bytes | None:
    """What stands of an object's key where the path ends within one (or within a string of an array)."""
    quote = path.rfind(b'"')
    return path[quote + 1 :] if quote > 0 and path[quote - 1] in b"{," else None
