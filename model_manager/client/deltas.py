"""Deltas: an answer handed to its caller as it is generated, so that all deltas together are the whole answer.

Knows tokens and how they become text; no connection, no thread, no future.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ..wire.errors import EngineError
from ..wire.logprobs import Logprobs
from ..wire.request import NewTokens, Output, Request
from .generation import Decoder, with_texts
from .text_pieces import REPLACEMENT

_log = logging.getLogger(__name__)


class Delta(msgspec.Struct, frozen=True):
    """What an answer has more than after the delta before."""

    index: int
    """Which of `n` answers, from 0."""
    text: str
    """Whole characters. Neither special tokens nor the stop string that ends the answer are in it."""
    token_ids: list[int]
    """Tokens since the last delta, including special tokens and the tokens of a stop string."""
    logprobs: Logprobs | None = None
    """One entry for each of them with its text, if the request asked."""


OnDelta = Callable[[Delta], None]


@dataclass
class Generated:
    """The tokens of an unfinished answer, as far as they have come."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    """One for each token, if the request asked."""

    def add(self, tokens: NewTokens) -> None:
        """Add the tokens that are new here. Tokens behind a gap are left out: they come with the answer."""
        known = len(self.token_ids) - tokens.offset
        if known < 0:
            return
        self.token_ids += tokens.token_ids[known:]
        if tokens.logprobs is not None:
            self.logprobs += tokens.logprobs.each()[known:]

    def keep(self, tokens: NewTokens) -> None:
        """Put tokens in the place of those from their offset on: a request that is not streamed may have been sent to a
        manager where it ran already, with others.
        """
        if tokens.offset <= len(self.token_ids):
            self.token_ids[tokens.offset :] = tokens.token_ids


class Deltas:
    """The deltas of one answer for one caller.

    Text is held back
      while a later token may change it (text_pieces.py)
      while its end may be the beginning of a stop string
      until the answer is there, from the second half of `max_tokens` on, where `max_tokens` may cut a constrained
      output: other tokens than the model's may end it (`Output.num_own_tokens`, `Request.num_lasting`)
      until the answer is there, where the tokenizer cleans texts as a whole
    """

    def __init__(self, on_delta: OnDelta, request: Request, decoder: Decoder | None) -> None:
        """`decoder`: None if the engine gives text, which comes in one delta."""
        params = request.params
        self._on_delta = on_delta
        self._stops = () if params.include_stop_str_in_output else params.stop
        self._decoder = decoder
        self._pieces = None if decoder is None else decoder.pieces(joined=params.constraint is not None)
        self._num_lasting = request.num_lasting if _may_be_closed(request) else None
        self._given: list[str] = []
        self._held = ""
        self._num_read = self._num_settled = self._num_given = 0  # tokens: read; with their text settled; in deltas

    def advance(self, generated: Generated) -> None:
        """Give what the tokens since the last call add."""
        if self._pieces is None:
            return
        for token_id in generated.token_ids[self._num_read : self._num_lasting]:
            self._num_read += 1
            if piece := self._pieces.push(token_id):
                self._held += piece
                self._num_settled = self._num_read
        if text := self._certain():
            self._held = self._held[len(text) :]
            self._give(text, *self._tokens(generated))

    def hold(self) -> None:
        """Give everything else with the answer."""
        self._pieces = None

    def finish(self, output: Output) -> None:
        """Give the rest of the answer, if there is any.

        Raises EngineError if the answer does not begin with what was given: an engine that went on after another one's
        death had not the same tokens.
        """
        given = "".join(self._given)
        if not output.text.startswith(given):
            raise EngineError(f"{output.request_id}: the answer differs from what was streamed of it")
        text, token_ids = output.text[len(given) :], output.token_ids[self._num_given :]
        if text or token_ids:
            self._give(text, token_ids, output.logprobs and output.logprobs.part(self._num_given))

    def _certain(self) -> str:
        """The held text without the end that may begin a stop string. Replacement characters before a stop string are
        no part of an answer either.
        """
        text = self._held
        most = max(map(len, self._stops), default=1) - 1
        for count in range(min(most, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stops):
                return text[:-count].rstrip(REPLACEMENT)
        return text

    def _tokens(self, generated: Generated) -> tuple[list[int], Logprobs | None]:
        """The settled tokens that no delta has had, with their log-probabilities."""
        part = slice(self._num_given, self._num_settled)
        token_ids, logprobs = generated.token_ids[part], generated.logprobs[part]
        if not logprobs or self._decoder is None:
            return token_ids, None
        return token_ids, with_texts(token_ids, Logprobs.join(logprobs), self._decoder)

    def _give(self, text: str, token_ids: list[int], logprobs: Logprobs | None) -> None:
        self._given.append(text)
        self._num_given += len(token_ids)
        try:
            self._on_delta(Delta(0, text, token_ids, logprobs))
        except Exception:
            _log.exception("on_delta failed, and is given no more deltas of this answer")
            self._on_delta = _ignore


def _ignore(_delta: Delta) -> None:
    """Takes the deltas of a caller whose own function failed."""


def _may_be_closed(request: Request) -> bool:
    """True if an ending may replace the last tokens of the output, once `max_tokens` has cut it."""
    params = request.params
    if request.may_be_cut:
        return False
    return params.constraint is not None and params.logprobs is None and not params.stop
