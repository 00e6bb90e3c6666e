"""A sequence's state in its grammar: what may come next, what must, and whether the output may end here.

Knows one sequence's tokens; not logits, nor the batch. llguidance's matchers do not raise. An error stays in the
matcher and every later call fails, which `take` reports. If a shared lexer has reached its limit, the tokens are
consumed again with a new one. Only what fails with an unshared lexer fails the output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as List
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from ..wire.errors import ConstraintNotMet, counted
from .closing import Closed
from .grammar import QUICK, Grammar, LexerSpent
from .refusals import of_a_step, of_slowness

NO_ROW = -1
_MOST_SECONDS, _SECONDS_A_TOKEN = 10.0, 0.25
"""Seconds of processor time that masks of one slow output may take: in all, and for each token in addition."""
_T = TypeVar("_T")


class GrammarSlow(Exception):
    """A guide is to be made again where no step waits for it."""


class Ends:
    """Which tokens end one request's output, beside those that its grammar knows."""

    def __init__(self, *, eos: Collection[int], stops: Collection[int], ignore_eos: bool) -> None:
        """`eos` tokens, which masks allow wherever the output may end, and `stops` end the output. With `ignore_eos`
        the former never come.
        """
        self._tokens = frozenset(stops) if ignore_eos else frozenset(eos) | frozenset(stops)
        self._added = sorted(set(stops) if ignore_eos else set(stops) - set(eos))
        self._removed = sorted(set(eos) - set(stops)) if ignore_eos else []

    def __contains__(self, token_id: int) -> bool:
        return token_id in self._tokens

    def complete(self, bits: npt.NDArray[np.uint32], *, may_end: bool) -> None:
        """Add the missing ends to a grammar's mask if the output `may_end`; remove tokens that never come."""
        for token in self._added if may_end else ():
            bits[token >> 5] |= np.uint32(1 << (token & 31))
        for token in self._removed:
            bits[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))


class Mask(NamedTuple):
    """Where the mask of the next token is, if it is made, and whether it allows a single token."""

    row: int
    is_single: bool


class Guide:
    """One output under one grammar, from its first token on."""

    def __init__(self, grammar: Grammar, ends: Ends) -> None:
        """`ends` may come where the grammar lets the output end; elsewhere these tokens are text, if they have text."""
        self._grammar = grammar
        self._ends = ends
        self._num_words = -(-grammar.tokenizer.vocab_size // 32)
        self._failure: ConstraintNotMet | None = None
        """Why there is no mask; the next token raises it."""
        self.mask: Mask | None = None
        """The mask of tokens that may come next, once it is computed."""
        self.has_ended = False
        """True if the last token ended the output; that token is not text."""
        self.made: npt.NDArray[np.uint32] | None = None
        """The mask of tokens that may come next, if `go_on` has made it."""
        self._gone_on: int | None = None
        """The token that `go_on` has consumed, until it is taken."""
        self._seconds = 0.0
        self._begin(grammar.start())

    def _begin(self, start: LLMatcher) -> None:
        """Go to the start of an output, with this matcher's lexer."""
        self._start = start
        self._tokens: list[int] = []
        self.matcher = start.deep_copy()
        self.forced: list[int] = []
        """Positions in the output where the grammar allowed a single token."""
        self.certain: list[int] = self._grammar.forced(self.matcher, look=False)
        """Tokens that the grammar forces next, in order."""

    @property
    def length(self) -> int:
        """How many tokens the output has, without the one that ended it."""
        return len(self._tokens)

    @property
    def is_slow(self) -> bool:
        """True if a step must not wait for it: `go_on` is called in another thread before each `take`."""
        return self._grammar.is_slow

    @property
    def only(self) -> int | None:
        """The only token that may come next, if that is known without a mask."""
        return self.certain[0] if self.certain else None

    @property
    def may_end(self) -> bool:
        """True if the output is whole with its last token."""
        return self.has_ended or self.matcher.is_accepting()

    @property
    def is_over(self) -> bool:
        """True if the output is whole and nothing may follow."""
        return self.matcher.is_accepting() and self.matcher.is_stopped()

    def take(self, token_id: int) -> None:
        """Consume a token. Raises ConstraintNotMet for a token that is not allowed, and if the grammar has become too
        complex.
        """
        gone_on, self._gone_on = self._gone_on, None
        if gone_on is not None:
            assert gone_on == token_id
            return
        began = time.thread_time()
        self._lasting(lambda: self._take(token_id))
        if (seconds := time.thread_time() - began) > QUICK:
            self._grammar.note(seconds)

    def go_on(self, token_id: int | None = None) -> None:
        """Do the work of taking a token, if there is one, and of the next mask; in another thread than the step's,
        which may run meanwhile. Raises as `take` does, and if the output has taken too much processor time.
        """
        began = time.thread_time()
        if token_id is not None:
            self._lasting(lambda: self._take(token_id))
            self._gone_on = token_id
        if not self.has_ended:
            self.made = np.zeros(self._num_words, np.uint32)
            self.fill(self.made)
        seconds = time.thread_time() - began
        self._grammar.note(seconds)
        self._seconds += seconds
        if self._seconds > _MOST_SECONDS + _SECONDS_A_TOKEN * self.length:
            raise ConstraintNotMet(of_slowness(self._grammar.name, self.length))

    def note_late(self) -> None:
        """Note that a step did not wait for its mask."""
        self._grammar.note(None)

    def take_again(self, token_id: int) -> None:
        """Consume a token that was taken before, in this engine or another; raises as `take` does, and GrammarSlow if
        the grammar turns out to be slow.
        """
        was_slow, began = self.is_slow, time.thread_time()
        self._lasting(self._look)
        if (seconds := time.thread_time() - began) > QUICK:
            self._grammar.note(seconds)
            if not was_slow:
                raise GrammarSlow
        self._lasting(lambda: self._take(token_id))

    def closed(self, max_tokens: int, least_kept: int = 0) -> Closed | None:
        """How to end the output within `max_tokens` in all, dropping some of the last, but none of the first
        `least_kept`; None if that is not found. Changes nothing.
        """
        return self._grammar.closed(self.matcher, self._tokens, max_tokens, least_kept)

    def choose(self, number: int) -> int:
        """The token that `number`, 0 or more, picks among those that may come next; raises ConstraintNotMet if there is
        none.
        """
        if self.only is not None:
            return self.only
        allowed = np.flatnonzero(np.unpackbits(self._lasting(self._bits).view(np.uint8), bitorder="little"))
        if not allowed.size:
            raise ConstraintNotMet(f"after {counted(self.length, 'token')} of output nothing may come")
        return int(allowed[number % len(allowed)])

    def valid(self, drafts: List[int]) -> list[int]:
        """The drafts before the first that is not allowed; none if that may take long."""
        if self.is_slow:
            return []
        return list(drafts[: self.matcher.validate_tokens(list(drafts))])

    def may_end_at(self, string: str, tokens: List[int], *, included: bool) -> bool:
        """True if the output before a string, which its last token has completed, is whole; with the string if
        `included`.

        `tokens` are the output's last tokens: more than the string has bytes, or all.
        """
        pieces, sought = [self._grammar.tokenizer.decode_bytes([token]) for token in tokens], string.encode()
        text = b"".join(pieces)
        at = text.find(sought, max(0, len(text) - len(pieces[-1]) - len(sought) + 1))
        if at < 0:  # the text has replacement characters there
            return False
        end, kept, count = at + len(sought) * included, len(text), 0
        while kept > end:
            kept -= len(pieces.pop())
            count += 1
        rest = self._grammar.tokenizer.tokenize_bytes(text[kept:end])
        return self._lasting(lambda: self._may_end_after(count, rest))

    def check_end(self, why: str) -> None:
        """Raises ConstraintNotMet if the output may not end after its last token; `why` it has to end."""
        if self._failure is not None:
            raise self._failure
        if not self.may_end:
            raise ConstraintNotMet(f"the output is not complete after {counted(self.length, 'token')}, and {why}")

    def fill(self, bits: npt.NDArray[np.uint32]) -> None:
        """Make a mask in `bits` after a failure: the matcher has failed, or allows nothing."""
        try:
            bits[:] = self._lasting(self._bits)
        except ConstraintNotMet as error:
            self._failure = error

    def complete(self, bits: npt.NDArray[np.uint32]) -> None:
        """Complete a mask with what llguidance does not know: which further tokens may end the output."""
        self._ends.complete(bits, may_end=self.matcher.is_accepting())

    def _lasting(self, job: Callable[[], _T]) -> _T:
        """Run a job; if the lexer fails, again with a new lexer, then with one that is not shared."""
        error: LexerSpent | None = None
        for start in (None, self._grammar.start, self._grammar.start_alone):
            try:
                if start is not None:
                    self._begin_again(start())
                return job()
            except LexerSpent as spent:
                error = spent
        raise ConstraintNotMet(str(error))

    def _begin_again(self, start: LLMatcher) -> None:
        """Consume all tokens so far with this matcher's lexer, up to where the last one failed."""
        tokens, forced = self._tokens, self.forced
        self._begin(start)
        try:
            for token_id in tokens:
                self._take(token_id, look=False)
            self._look()
        finally:
            self._tokens, self.forced = tokens, forced

    def _take(self, token_id: int, *, look: bool = True) -> None:
        if self._failure is not None:
            raise self._failure
        mask, self.mask, self.made = self.mask, None, None
        if token_id in self._ends and self.matcher.is_accepting():
            self.has_ended = True
            return
        if not self._grammar.consume(self.matcher, token_id):
            self._check_lexer()
            self._check_matcher()
        if self.certain or (mask is not None and mask.is_single):
            self.forced.append(self.length)
        self._tokens.append(token_id)
        rest = self.certain[1:] if self.certain[:1] == [token_id] else []
        self.certain = rest or self._grammar.forced(self.matcher, look=look)

    def _look(self) -> None:
        """Find out, if it is not known, whether a single token may come next."""
        if not self.certain:
            self.mask = Mask(NO_ROW, int(np.bitwise_count(self._bits()).sum()) == 1)

    def _bits(self) -> npt.NDArray[np.uint32]:
        """The mask of the tokens that may come next."""
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint32)[: self._num_words].copy()
        if self.matcher.is_error() or not bits.any():
            self._check_lexer()
            self._check_matcher()
        self.complete(bits)
        return bits

    def _may_end_after(self, count: int, rest: list[int]) -> bool:
        """True if the output may end when `rest` replaces its last `count` tokens."""
        matcher = self.matcher.deep_copy()
        matcher.rollback(count)
        if matcher.try_consume_tokens(rest) != len(rest):
            self._check_lexer()
            return False
        return bool(matcher.is_accepting())

    def _check_lexer(self) -> None:
        if self._grammar.is_spent(self._start):
            raise LexerSpent(f"after {counted(self.length, 'token')} of output: the constraint takes too many states")

    def _check_matcher(self) -> None:
        if self.matcher.is_error():
            raise ConstraintNotMet(
                f"after {counted(self.length, 'token')} of output: {of_a_step(self.matcher.get_error())}"
            )
