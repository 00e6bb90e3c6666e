"""A compiled constraint, and how quickly it is followed. Knows no sequence, and not what it was compiled from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache, cached_property

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer

from .closing import Closed, Closing

QUICK = 0.004
"""Seconds of processor time that a token of a quick grammar takes, at most."""
_SUSPECTED, _SLOW = 4, 32
"""Quick tokens, one after another, that make a grammar quick again: one that is suspected, one that was slow."""


class LexerSpent(Exception):
    """The lexer that matchers share has reached a limit, so none of them can go on; the message names the limit."""


class Grammar:
    """A compiled constraint; any thread may take matchers.

    Copying a matcher takes a microsecond, since copies share one lexer, which keeps each state that any of them
    reaches. When the lexer has too many states, all its matchers fail. Later outputs get a new lexer, which is compiled
    again.
    """

    def __init__(
        self, name: str, start: LLMatcher, build: Callable[[], LLMatcher], tokenizer: LLTokenizer, closing: Closing
    ) -> None:
        """`name` is what errors call it; `start` stays at the start; `build` makes another one, with its own lexer."""
        self.name = name
        self._start = start
        self._build = build
        self._lock = threading.Lock()
        self.tokenizer = tokenizer
        self._closing = closing
        self._not_quick = 0
        self._probe = _allowed_first(start, tokenizer.eos_tokens)

    @property
    def is_slow(self) -> bool:
        """True if its matchers may take long for a token, so a step must not wait for them. They share a lexer, which
        one of them at a time can use: all are slow.
        """
        return self._not_quick > 0

    def note(self, seconds: float | None) -> None:
        """Note the processor time that a token took; None if that is not known, and may be long."""
        if seconds is None:
            self._not_quick = max(self._not_quick, _SUSPECTED)
        else:
            self._not_quick = max(0, self._not_quick - 1) if seconds <= QUICK else _SLOW

    def consume(self, matcher: LLMatcher, token_id: int) -> bool:
        """Advance one of its matchers; False if that fails."""
        return _consume_apart(matcher, token_id) if self.is_slow else matcher.consume_token(token_id)

    def forced(self, matcher: LLMatcher, *, look: bool) -> list[int]:
        """The tokens that must come next; `look` makes the mask too if it is slow, which may take states of a lexer."""
        if look and self.is_slow:
            matcher.compute_bitmask()  # finds out what must come, and needs no interpreter's lock for it
        return matcher.compute_ff_tokens()

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
        return not self.consume(start.deep_copy(), self._probe)


def _allowed_first(start: LLMatcher, ends: list[int]) -> int:
    """A token that an output may begin with; one that ends it, which needs no lexer, only if no other may."""
    mask = np.frombuffer(start.deep_copy().compute_bitmask(), np.uint8)
    allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
    return int([*ends[:1], *allowed[~np.isin(allowed, ends)]][-1])


def _consume_apart(matcher: LLMatcher, token_id: int) -> bool:
    """As `matcher.consume_token`, which may take a second and keeps the interpreter's lock, so all threads would wait.

    Only a call for several matchers frees the lock. So one that has failed, which is left at once, goes with each.
    """
    executor, failed = _several()
    return bool(executor.consume_token_par([(matcher, token_id), (failed.deep_copy(), 0)])[0])


def start_thread() -> None:
    """Start the thread that slow grammars' matchers are advanced in, as a child of the calling one."""
    _several()


@cache
def _several() -> tuple[LLExecutor, LLMatcher]:
    failed = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(""), log_level=0)
    assert failed.is_error()
    return LLExecutor(1), failed
