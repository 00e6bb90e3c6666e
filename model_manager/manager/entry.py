"""An unfinished request in the manager. Knows neither clients' sockets nor engines' processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

import msgspec

from ..wire.errors import RequestError
from ..wire.logprobs import Logprobs
from ..wire.request import Failure, FinishReason, NewText, NewTokens, Output, Request
from ..wire.timings import Setback, Timings

OutputOrFailure = TypeVar("OutputOrFailure", Output, Failure)


@dataclass
class Entry:
    """One request, the clients that wait for it, and the tokens that engines have generated for it."""

    request: Request
    arrived: float
    receivers: list[int] = field(default_factory=list)
    """Clients that wait, each as often as it has sent the request; empty for an orphan or while it is cancelled."""
    tokens: list[int] = field(default_factory=list)
    """Generated so far, by any engine."""
    logprobs: list[Logprobs] = field(default_factory=list)
    """Log-probabilities of `tokens`, one for each, if the request asks for them."""
    text: str = ""
    """The text of `tokens`, from an engine that takes text; else empty."""
    prompt_token_ids: list[int] = field(default_factory=list)
    """The prompt's, as far as they are known: an engine that takes text tells its own with the first tokens."""
    streams: dict[int, int] = field(default_factory=dict)
    """Receivers that want the tokens as they are generated, each with how many it has been sent."""
    keepers: dict[int, int] = field(default_factory=dict)
    """Other receivers, each with how many tokens it has been sent in case this manager dies."""
    engine: int | None = None
    """Index of the engine that has it; None if no engine has it."""
    work: int = 0
    """Most tokens that this engine may compute for it: prompt and output, less what the engine has of the prompt."""
    progressed: bool = False
    """True if the engine that has it now has generated tokens for it."""
    cancelled: bool = False
    """True if its engine was told to end it."""
    deaths: int = 0
    """Deaths in a row of engines that had this request. Counted anew, from 1, if the engine had generated tokens."""
    orphaned_until: float | None = None
    """When it ends unless somebody asks for it again: its last receiver died."""
    setbacks: list[Setback] = field(default_factory=list)
    """Every death of an engine that had it."""
    lost_tokens: int = 0
    """Tokens that engines had computed for it as they died."""

    @classmethod
    def of(cls, request: Request, client: int, now: float) -> Self:
        """The entry of a client's request."""
        entry = cls(request, arrived=now, prompt_token_ids=request.prompt_token_ids)
        entry.attach(client, request)
        return entry

    def attach(self, client: int, request: Request) -> None:
        """One more client waits, with the same request. It may bring more tokens than are known here, from a manager
        that died: while no engine has the request, these count. Tokens that an ending may replace are not streamed: the
        engine would have to know (`Request.num_lasting`). Those of an engine that takes text are not either: its client
        has no tokenizer for them. The latter are not kept either, nor tokens with log-probabilities, which are large.
        """
        self.receivers.append(client)
        self.orphaned_until = None
        lasts = self.request.stream or request.params.constraint is None
        if request.stream and lasts and not request.is_text:
            self.streams[client] = len(request.output_token_ids)
        if self.engine is None and len(request.output_token_ids) > len(self.tokens):
            self.tokens = list(request.output_token_ids)
            self.logprobs = [] if request.output_logprobs is None else request.output_logprobs.each()
            self.keepers = dict.fromkeys(self.keepers, 0)
        if not (self.request.stream or request.stream or request.is_text) and request.params.logprobs is None:
            known = request.output_token_ids
            self.keepers[client] = len(known) if self.tokens[: len(known)] == known else 0

    def detach(self, client: int) -> None:
        """A client no longer waits for one of its submits."""
        self.receivers.remove(client)
        if client not in self.receivers:
            self.streams.pop(client, None)
            self.keepers.pop(client, None)

    def forsake(self, client: int) -> None:
        """A client is gone."""
        self.receivers = [receiver for receiver in self.receivers if receiver != client]
        self.streams.pop(client, None)
        self.keepers.pop(client, None)

    def unsent_tokens(self) -> Iterator[tuple[int, NewTokens]]:
        """The tokens that each stream has not been sent, by client; they count as sent."""
        for client, known in self.streams.items():
            if known < len(self.tokens):
                logprobs = Logprobs.join(self.logprobs[known:]) if self.logprobs else None
                yield client, NewTokens(self.request.request_id, known, self.tokens[known:], logprobs)
                self.streams[client] = len(self.tokens)

    def unkept_tokens(self, client: int) -> NewTokens | None:
        """The tokens that a keeper has not been sent, if there are any; they count as sent."""
        known = self.keepers.get(client)
        if known is None or known >= len(self.tokens):
            return None
        self.keepers[client] = len(self.tokens)
        return NewTokens(self.request.request_id, known, self.tokens[known:])

    def progress(self, tokens: Sequence[int], logprobs: Logprobs | None, text: NewText | None = None) -> None:
        """Its engine has generated more tokens for it."""
        self.tokens.extend(tokens)
        self.progressed = True
        if text is not None:
            self.text += text.text
            self.prompt_token_ids = self.prompt_token_ids or text.prompt_token_ids
        if logprobs is not None:
            self.logprobs += logprobs.each()

    def engine_died(self, now: float) -> None:
        """The engine that had it is gone."""
        self.setbacks.append(Setback("engine_died", now - self.arrived))
        self.lost_tokens = self.computed_tokens

    def told(self, answer: OutputOrFailure) -> OutputOrFailure:
        """An answer as clients get it, with what held the request up here."""
        if not self.setbacks:
            return answer
        setbacks = [*self.setbacks, *answer.setbacks]
        if isinstance(answer, Failure):
            return msgspec.structs.replace(answer, setbacks=setbacks)
        again = answer.recomputed_tokens + max(0, self.lost_tokens - answer.cached_tokens)
        return msgspec.structs.replace(answer, setbacks=setbacks, recomputed_tokens=again)

    def take_back(self) -> None:
        """Note that no engine has the request any more."""
        self.engine = None
        self.cancelled = self.progressed = False

    def is_same_work(self, request: Request) -> bool:
        """Whether a request of the same id stands for the same work."""
        return self.request.work() == request.work()

    def as_sent(self, now: float) -> Request:
        """The request as it is sent to an engine, with the tokens that earlier engines generated."""
        return msgspec.structs.replace(
            self.request,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=list(self.tokens),
            output_text=self.text,
            output_logprobs=Logprobs.join(self.logprobs) if self.logprobs else None,
            waited=now - self.arrived,
        )

    @property
    def computed_tokens(self) -> int:
        """Tokens that engines have computed for it. A prompt that has no token yet counts as none."""
        in_hand = len(self.prompt_token_ids) + len(self.tokens) if self.progressed else 0
        return self.lost_tokens + in_hand

    @property
    def most_tokens(self) -> int:
        """Most tokens of its prompt, as far as it is known, and its output."""
        return len(self.request.prompt_token_ids) + self.request.params.max_tokens

    @property
    def num_shared(self) -> int:
        """Number of prompt tokens that all requests of its family begin with (engine_pool.py); 0 without a family."""
        if not self.request.family:
            return 0
        return self.request.score_from if self.request.task == "score" else len(self.request.prompt_token_ids)

    def is_overdue(self, now: float) -> bool:
        """True if its deadline has passed."""
        deadline = self.request.params.deadline
        return deadline is not None and now - self.arrived >= deadline

    def failure(self, error: RequestError) -> Failure:
        """The answer to a client for a request that fails in the manager, with the tokens so far."""
        return Failure(self.request.request_id, error.info(), list(self.tokens))

    def cut_short(self, reason: FinishReason, now: float) -> Output:
        """The answer to a client that cancels, or whose deadline has passed: the tokens so far."""
        waited = now - self.arrived
        return Output(
            request_id=self.request.request_id,
            token_ids=[] if self.request.is_text else list(self.tokens),
            finish_reason=reason,
            logprobs=Logprobs.join(self.logprobs) if self.logprobs else None,
            timings=Timings(queued=waited, first_token=waited, finished=waited),
            prompt_tokens=len(self.prompt_token_ids),
            text=self.text,
            num_tokens=len(self.tokens) if self.request.is_text else None,
        )
