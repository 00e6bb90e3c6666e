"""A request that the manager has and that is not finished. Knows neither clients' sockets nor engines' processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ..wire.errors import RequestError
from ..wire.logprobs import Logprobs
from ..wire.messages import Failure, FinishReason, Output, Request, Timings


@dataclass
class Entry:
    """One request, who waits for it, and what its engines have made of it."""

    request: Request
    arrived: float
    receivers: list[int] = field(default_factory=list)
    """Clients, each as often as it has sent the request; empty: an orphan, or being cancelled."""
    tokens: list[int] = field(default_factory=list)
    """Generated so far, by any engine."""
    logprobs: list[Logprobs] = field(default_factory=list)
    """Theirs, where they are asked for."""
    engine: int | None = None
    """Which engine has it."""
    work: int = 0
    """Tokens that it may yet come to there, without a prompt that its family had there before."""
    progressed: bool = False
    """This engine has generated tokens for it."""
    cancelled: bool = False
    """The engine was told to end it."""
    deaths: int = 0
    """Deaths of its engine in a row at which it was there and had come no further."""
    orphaned: float | None = None
    """When its last receiver died."""

    def progress(self, tokens: Sequence[int], logprobs: Logprobs | None) -> None:
        """Its engine has generated more tokens for it."""
        self.tokens.extend(tokens)
        self.progressed = True
        if logprobs is not None:
            self.logprobs.append(logprobs)

    def take_back(self) -> None:
        """No engine has it any more."""
        self.engine = None
        self.cancelled = self.progressed = False

    def is_same_work(self, request: Request) -> bool:
        """Whether a request of the same id stands for the same work."""
        return self.request.work() == request.work()

    def as_sent(self, now: float) -> Request:
        """The request for an engine, with the tokens there are."""
        return msgspec.structs.replace(
            self.request,
            output_token_ids=list(self.tokens),
            output_logprobs=Logprobs.join(self.logprobs) if self.logprobs else None,
            waited=now - self.arrived,
        )

    @property
    def num_shared(self) -> int:
        """Tokens of its prompt that all its family begin with; none if it has no family."""
        if not self.request.family:
            return 0
        return self.request.score_from if self.request.task == "score" else len(self.request.prompt_token_ids)

    @property
    def is_first(self) -> bool:
        """Whether it is a prompt's only answer, or the first of several."""
        return self.request.family in ("", self.request.request_id)

    def is_overdue(self, now: float) -> bool:
        """Whether it should have ended by now."""
        deadline = self.request.params.deadline
        return deadline is not None and now - self.arrived >= deadline

    def failure(self, error: RequestError) -> Failure:
        """What a client gets of a request that fails here, with the tokens there are."""
        return Failure(self.request.request_id, error.info(), list(self.tokens))

    def cut_short(self, reason: FinishReason, now: float) -> Output:
        """What a client gets that waits no longer: the tokens there are."""
        waited = now - self.arrived
        return Output(
            request_id=self.request.request_id,
            token_ids=list(self.tokens),
            finish_reason=reason,
            logprobs=Logprobs.join(self.logprobs) if self.logprobs else None,
            timings=Timings(queued=waited, first_token=waited, finished=waited),
            prompt_tokens=len(self.request.prompt_token_ids),
        )
