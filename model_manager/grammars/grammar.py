"""A compiled constraint. Knows no sequence, and not what it was compiled from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from .closing import Closed, Closing


class LexerSpent(Exception):
    """The lexer that matchers share has reached a limit, so none of them can go on; the message names the limit."""


class Grammar:
    """A compiled constraint; any thread may take matchers.

    Copying a matcher takes a microsecond, since copies share one lexer, which keeps each state that any of them
    reaches. When the lexer has too many states, all its matchers fail. Later outputs get a new lexer, which is compiled
    again.
    """

    def __init__(
        self, start: LLMatcher, build: Callable[[], LLMatcher], tokenizer: LLTokenizer, closing: Closing
    ) -> None:
        """`start` stays at the start; `build` makes another one, with its own lexer."""
        self._start = start
        self._build = build
        self._lock = threading.Lock()
        self.tokenizer = tokenizer
        self._closing = closing
        self._probe = _allowed_first(start, tokenizer.eos_tokens)

    def matcher(self) -> LLMatcher:
        """A matcher at the start of an output, for one sequence and one thread at a time."""
        return self.start().deep_copy()

    def start(self) -> LLMatcher:
        """The matcher that others are copied from; it does not move."""
        with self._lock:
            if self.is_spent(self._start):
                self._start = self._build()
            return self._start

    def start_alone(self) -> LLMatcher:
        """A matcher at the start whose lexer is not shared."""
        return self._build()

    def closed(self, matcher: LLMatcher, tokens: Sequence[int], max_tokens: int, least_kept: int = 0) -> Closed | None:
        """How to end an output within `max_tokens`, its first `least_kept` tokens kept (closing.py); None if that is
        not found. Skips the search if even the shortest output is longer.
        """
        if self._shortest is not None and self._shortest > max_tokens:
            return None
        return self._closing.close(matcher, tokens, max_tokens, least_kept)

    @cached_property
    def _shortest(self) -> int | None:
        """About how many tokens the shortest output has; computed when the first output is cut."""
        return self._closing.shortest(self.matcher())

    def is_spent(self, start: LLMatcher) -> bool:
        """True if the lexer of `start` has reached its limit: it no longer takes a token that may come first."""
        return not start.deep_copy().consume_token(self._probe)


def _allowed_first(start: LLMatcher, ends: list[int]) -> int:
    """A token that an output may begin with; one that ends it, which needs no lexer, only if no other may."""
    mask = np.frombuffer(start.deep_copy().compute_bitmask(), np.uint8)
    allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
    return int([*ends[:1], *allowed[~np.isin(allowed, ends)]][-1])
