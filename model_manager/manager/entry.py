"""An unfinished request in the manager. Knows neither clients' sockets nor engines' processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ..wire.errors import RequestError
from ..wire.logprobs import Logprobs
from ..wire.messages import Failure, FinishReason, Output, Request, Timings


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
    """Log-probabilities of `tokens`, if the request asks for them."""
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
    orphaned: float | None = None
    """When its last receiver died."""

    def progress(self, tokens: Sequence[int], logprobs: Logprobs | None) -> None:
        """Its engine has generated more tokens for it."""
        self.tokens.extend(tokens)
        self.progressed = True
        if logprobs is not None:
            self.logprobs.append(logprobs)

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
            output_token_ids=list(self.tokens),
            output_logprobs=Logprobs.join(self.logprobs) if self.logprobs else None,
            waited=now - self.arrived,
        )

    @property
    def num_shared(self) -> int:
        """Number of prompt tokens that all requests of its family begin with (see families.py); 0 without a family."""
        if not self.request.family:
            return 0
        return self.request.score_from if self.request.task == "score" else len(self.request.prompt_token_ids)

    @property
    def is_first(self) -> bool:
        """True for the only request of a prompt, or the first of several."""
        return self.request.family in ("", self.request.request_id)

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
            token_ids=list(self.tokens),
            finish_reason=reason,
            logprobs=Logprobs.join(self.logprobs) if self.logprobs else None,
            timings=Timings(queued=waited, first_token=waited, finished=waited),
            prompt_tokens=len(self.request.prompt_token_ids),
        )
