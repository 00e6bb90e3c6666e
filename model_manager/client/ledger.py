"""A client's unanswered requests. Knows no socket and no thread: its owner holds a lock for it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ..wire.errors import InvalidRequest
from ..wire.logprobs import Logprobs
from ..wire.request import NewTokens, Request
from .deltas import Deltas, Generated


@dataclass(eq=False)
class Waiter:
    """Someone's future for a request's result; `since` on the clock of the client."""

    since: float
    deltas: Deltas | None = None
    """Where the answer goes as it is generated, if anywhere."""
    future: Future[Any] = field(default_factory=Future)


@dataclass
class Pending:
    """A request and who waits for it."""

    request: Request
    waiters: list[Waiter]
    cancelled: int = 0
    """Submits of this id on this connection that were cancelled; as many answers come before the one that counts."""
    generated: Generated | None = None
    """The tokens that have come so far, of a streamed request all; they are sent to the next manager."""
    lost: list[float] = field(default_factory=list)
    """When a manager that had it was lost, on the clock of the client."""
    computed_tokens: int = 0
    """Tokens that engines have computed for it, as managers last said; engines of lost managers count too."""
    lost_tokens: int = 0
    """Tokens of `computed_tokens` that were lost with their managers."""

    def resumed(self) -> Request:
        """The request to send again: its answer goes on after the tokens that have come, so none of them changes."""
        if self.generated is None:
            return self.request
        logprobs = Logprobs.join(self.generated.logprobs) if self.generated.logprobs else None
        return replace(self.request, output_token_ids=self.generated.token_ids.copy(), output_logprobs=logprobs)


class Ledger:
    """Pending requests by id, in the order of submission."""

    def __init__(self) -> None:
        self._pending: dict[str, Pending] = {}
        self.in_use = 0
        """Answers that the manager owes on this connection: the credits in use."""

    def join(self, request: Request, waiter: Waiter) -> bool:
        """Wait for a request that is outstanding already; False if it is not.

        Raises InvalidRequest if the id stands for other work.
        """
        pending = self._pending.get(request.request_id)
        if pending is None or not pending.waiters:
            return False
        if pending.request.work() != request.work():
            raise InvalidRequest(f"request_id {request.request_id!r} is outstanding for other work")
        pending.waiters.append(waiter)
        return True

    def add(self, request: Request, waiter: Waiter) -> None:
        """Enter a request that is about to be sent."""
        pending = self._pending.pop(request.request_id, None)
        cancelled = pending.cancelled if pending else 0
        self._pending[request.request_id] = Pending(request, [waiter], cancelled)
        self.in_use += 1

    def progressed(self, tokens: NewTokens) -> tuple[Generated, list[Waiter]] | None:
        """Tokens have come. Returns all of a streamed request's tokens so far, with its waiters; None if they belong to
        a submit that was cancelled, or are only to be kept.
        """
        pending = self._pending.get(tokens.request_id)
        if pending is None or pending.cancelled:
            return None
        if pending.generated is None:
            pending.generated = Generated()
        if not pending.request.stream:
            pending.generated.keep(tokens)
            return None
        pending.generated.add(tokens)
        return pending.generated, pending.waiters.copy()

    def computed(self, counts: dict[str, int]) -> None:
        """The manager says how many tokens its engines have computed for each request that runs."""
        for request_id, count in counts.items():
            if (pending := self._pending.get(request_id)) is not None:
                pending.computed_tokens = pending.lost_tokens + count

    def answered(self, request_id: str) -> Pending | None:
        """An answer has come. Returns the request with its waiters; None if nobody waits for this answer."""
        pending = self._pending.get(request_id)
        if pending is None:
            return None
        self.in_use -= 1
        if pending.cancelled:
            pending.cancelled -= 1
            if pending.cancelled or pending.waiters:
                return None
            del self._pending[request_id]
            return None
        return self._pending.pop(request_id)

    def cancel(self, request_id: str, only: Future[Any] | None = None) -> list[Waiter] | None:
        """Remove all waiters of a request, or the waiter of the future `only`. Returns the removed waiters if none is
        left, so the request is to be cancelled; else None.
        """
        pending = self._pending.get(request_id)
        if pending is None or not pending.waiters:
            return None
        kept = [] if only is None else [waiter for waiter in pending.waiters if waiter.future is not only]
        gone = [waiter for waiter in pending.waiters if waiter not in kept]
        pending.waiters = kept
        if kept or not gone:
            return None
        pending.cancelled += 1
        return gone

    def reconnected(self, now: float) -> list[Request]:
        """The requests to send again on a new connection, on which no answer is owed yet."""
        self._pending = {name: pending for name, pending in self._pending.items() if pending.waiters}
        for pending in self._pending.values():
            pending.cancelled = 0
            pending.lost.append(now)
            pending.lost_tokens = pending.computed_tokens
        self.in_use = len(self._pending)
        return [pending.resumed() for pending in self._pending.values()]

    def clear(self) -> list[Waiter]:
        """Forget all requests; returns their waiters."""
        waiters = [waiter for pending in self._pending.values() for waiter in pending.waiters]
        self._pending, self.in_use = {}, 0
        return waiters

    def is_waited_for(self) -> bool:
        """Whether anyone waits for anything."""
        return any(pending.waiters for pending in self._pending.values())
