"""An answer that comes in pieces with their token ids, and the tokens that a retry continues from. Knows no dialect.

    pieces ──► unsettled ──another piece comes──► kept

A server may hold text back: half a character, or the beginning of what may be a stop string. The tokens of a piece
without text are therefore kept only together with the next text. The tokens of a piece with text may end in half a
character, too: a piece of several tokens is kept once the next text begins with an ASCII character, which cannot be the
other half. The last piece is not kept yet, since it may have ended the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Protocol, runtime_checkable

import msgspec

from ...wire.backends import BACKENDS
from ...wire.errors import counted
from ...wire.request import FinishReason, Request
from ...wire.sampling import SamplingParams
from .dialects import Dialect, Garbled, ServerAnswer

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
TokenIdList = list[TokenId]
_LAST = b"[DONE]"


@dataclass(frozen=True)
class StreamPiece:
    """What one event of a stream says; what it does not say is at its default."""

    text: str = ""
    token_ids: Sequence[int] | None = None
    """The tokens since the last event."""
    num_tokens: int = 0
    """Tokens of the whole answer."""
    prompt_token_ids: Sequence[int] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass
class Kept:
    """Tokens of a request that goes on, with their text; `prompt_token_ids` come with the first ones."""

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    prompt_token_ids: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Token ids, and characters."""
        return len(self.token_ids) + len(self.prompt_token_ids) + len(self.text)

    def add(self, more: Kept) -> None:
        """Add what follows."""
        self.token_ids += more.token_ids
        self.text += more.text
        self.prompt_token_ids = self.prompt_token_ids or more.prompt_token_ids


TellKept = Callable[[Kept], None]
"""Takes tokens that are kept from now on."""


@runtime_checkable
class StreamDialect(Dialect, Protocol):
    """A dialect in which a request can go on from tokens."""

    needs_prompt_token_ids: bool
    """Whether its server must have told the prompt's."""

    def streams(self, request: Request) -> bool:
        """Whether `call` asks for a stream, because the rest of the answer would be the same after its first tokens."""

    def piece(self, event: bytes) -> StreamPiece:
        """What an event of the stream says; raises Garbled, or RequestError if it is the row's fault."""


class AnswerStream:
    """The answer of one try of a request, event by event."""

    def __init__(self, request: Request, dialect: StreamDialect, tell: TellKept) -> None:
        self._request = request
        self._dialect = dialect
        self._tell = tell
        self._whole = ServerAnswer()
        self._ended = False
        self._told = Kept(request.request_id)
        self._unsettled = Kept(request.request_id)
        self._last = StreamPiece()
        self._num_tokens = 0
        self._counts_all = True
        """Whether all of the text came with its tokens."""
        self._has_all_tokens = True

    def take(self, event: bytes) -> None:
        """The data of one event; raises Garbled, or RequestError if it is the row's fault."""
        if event == _LAST:
            return
        piece = self._dialect.piece(event)
        self._check_prompt(piece)
        if self._unsettled.text and self._is_whole(piece) and piece.finish_reason is None and not self._ended:
            self._settle()
        self._note(piece)
        self._add(piece)

    def _check_prompt(self, piece: StreamPiece) -> None:
        """Raises Garbled if the server does not go on after the tokens that it was given."""
        request = self._request
        if not request.output_token_ids or not piece.prompt_token_ids:
            return
        sent = request.prompt_token_ids + request.output_token_ids
        if list(piece.prompt_token_ids) != sent:
            raise Garbled(f"it was given {counted(len(sent), 'token')} to go on from, and began elsewhere")

    def _is_whole(self, following: StreamPiece) -> bool:
        """Whether the text before this piece has all characters of its tokens."""
        last = self._last
        is_one = last.token_ids is not None and len(last.token_ids) == 1
        return last.text != "" and (is_one or (following.text != "" and following.text[0].isascii()))

    def _note(self, piece: StreamPiece) -> None:
        """What belongs to the answer as a whole."""
        whole = self._whole
        self._ended = self._ended or piece.finish_reason is not None
        self._whole = replace(
            whole,
            text=whole.text + piece.text,
            finish_reason=piece.finish_reason or whole.finish_reason,
            stop_reason=whole.stop_reason if piece.stop_reason is None else piece.stop_reason,
            num_tokens=piece.num_tokens or whole.num_tokens,
            prompt_tokens=piece.prompt_tokens or whole.prompt_tokens,
            cached_tokens=piece.cached_tokens or whole.cached_tokens,
        )

    def _add(self, piece: StreamPiece) -> None:
        """Add a piece of the answer. From the first gap on, the piece's tokens are not kept."""
        self._last = piece
        self._num_tokens += len(piece.token_ids or ())
        self._counts_all = self._counts_all and (not piece.text or piece.token_ids is not None)
        more = Kept("", list(piece.token_ids or ()), piece.text, list(piece.prompt_token_ids or ()))
        self._has_all_tokens = self._has_all_tokens and not self._leaves_gap(piece)
        if self._has_all_tokens:
            self._unsettled.add(more)

    def _leaves_gap(self, piece: StreamPiece) -> bool:
        """Whether there is text without its tokens, fewer tokens than the server counts, so many that none is left to
        ask for, or no prompt for them.
        """
        if len(self._request.output_token_ids) + self._num_tokens >= self._request.params.max_tokens:
            return True
        if piece.finish_reason is None and piece.num_tokens not in (0, self._num_tokens):
            return True
        prompts = (each.prompt_token_ids for each in (self._request, self._told, self._unsettled, piece))
        lacks_prompt = self._dialect.needs_prompt_token_ids and not any(prompts)
        return bool(piece.text) and (piece.token_ids is None or lacks_prompt)

    def _settle(self) -> None:
        self._told.add(self._unsettled)
        self._tell(self._unsettled)
        self._unsettled = Kept(self._request.request_id)

    def answer(self) -> ServerAnswer:
        """This try's answer; raises Garbled if it did not end. If the server counted no tokens, received ones count."""
        if not self._ended:
            raise Garbled("its answer broke off")
        counted = self._whole.num_tokens or (self._num_tokens if self._counts_all else 0)
        return replace(self._whole, num_tokens=counted)

    def rest(self) -> Request:
        """The request for another try, which goes on after what is kept."""
        request, told = self._request, self._told
        return msgspec.structs.replace(
            request,
            prompt_token_ids=request.prompt_token_ids or told.prompt_token_ids,
            output_token_ids=request.output_token_ids + told.token_ids,
            output_text=request.output_text + told.text,
        )


def whole(answer: ServerAnswer, request: Request) -> ServerAnswer:
    """The answer to all of a request, of a server that went on after the tokens that it was given."""
    if not (given := len(request.output_token_ids)):
        return answer
    return replace(
        answer,
        text=request.output_text + answer.text,
        num_tokens=answer.num_tokens + given if answer.num_tokens else 0,
        prompt_tokens=max(0, answer.prompt_tokens - given),
        cached_tokens=min(answer.cached_tokens, max(0, answer.prompt_tokens - given)),
    )


def goes_on(params: SamplingParams) -> bool:
    """Whether the rest of an answer is the same after its first tokens as without a stop there. Without
    log-probabilities: those of the first tokens are not kept.
    """
    return params.constraint is None and params.logprobs is None and BACKENDS["endpoint"].goes_on(params)
