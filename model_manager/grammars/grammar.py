"""A compiled constraint. Knows no sequence, and not what it was compiled from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from .closing import Closed, Closing


class LexerSpent(Exception):
    """The lexer that matchers share has come to its limit, and none of them goes on; the message says to which."""


class Grammar:
    """A compiled constraint; any thread may ask for matchers.

    A matcher is copied in a microsecond since its copies share its lexer, which keeps each state that any of them
    comes to. One whose states are too many fails all of them, whoever came to those; what begins after that gets a
    matcher with a new lexer, compiled once more.
    """

    def __init__(
        self, start: LLMatcher, build: Callable[[], LLMatcher], tokenizer: LLTokenizer, closing: Closing
    ) -> None:
        """`start` stays at the start; `build` makes another, with a lexer of its own."""
        self._start = start
        self._build = build
        self._lock = threading.Lock()
        self.tokenizer = tokenizer
        self._closing = closing
        self._probe = _allowed_first(start, tokenizer.eos_tokens)

    def matcher(self) -> LLMatcher:
        """A matcher at the start of an output; it is one sequence's own, and one thread's at a time."""
        return self.start().deep_copy()

    def start(self) -> LLMatcher:
        """What matchers are copied from; it stays where it is."""
        with self._lock:
            if self.is_spent(self._start):
                self._start = self._build()
            return self._start

    def start_alone(self) -> LLMatcher:
        """The same with a lexer that nobody else uses."""
        return self._build()

    def closed(self, matcher: LLMatcher, tokens: Sequence[int], max_tokens: int) -> Closed | None:
        """How an output is brought to its end in so many tokens (closing.py); None if that is not found. It is not
        looked for where the shortest output has more.
        """
        if self._shortest is not None and self._shortest > max_tokens:
            return None
        return self._closing.close(matcher, tokens, max_tokens)

    @cached_property
    def _shortest(self) -> int | None:
        """About how many tokens the shortest output has, looked for when the first output is cut."""
        return self._closing.shortest(self.matcher())

    def is_spent(self, start: LLMatcher) -> bool:
        """Whether the lexer of a `start` has come to its limit: what may come first is taken no more."""
        return not start.deep_copy().consume_token(self._probe)


def _allowed_first(start: LLMatcher, ends: list[int]) -> int:
    """A token that an output may begin with: one of those that end it, for which no lexer is asked, if no other may."""
    mask = np.frombuffer(start.deep_copy().compute_bitmask(), np.uint8)
    allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
    return int([*ends[:1], *allowed[~np.isin(allowed, ends)]][-1])
