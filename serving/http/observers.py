"""Observers of requests: the log, and whatever counts them. Observers run in the event loop, and never wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from millrace.model_manager.wire.request import Output

_log = logging.getLogger(__name__)


class ObservedAnswer(msgspec.Struct, frozen=True):
    """One answer of a request, which has several with `n`, or with several prompts. Times as in Observed."""

    output: Output
    ended: float
    """When it was here whole."""
    first_token: float | None = None
    """When its first part was here; None for an answer that is not streamed."""


class Observed(msgspec.Struct):
    """One request as far as it has come; times on the clock of `time.monotonic`."""

    route: str
    """Path of the route, such as /v1/completions."""
    since: float = msgspec.field(default_factory=time.monotonic)
    stream: bool = False
    first_token: float | None = None
    """When the first token of any answer was there; None before, and for a request that is not streamed."""
    ended: float | None = None
    status: int = 0
    """HTTP status; 0 until it is decided, 499 for a client that hung up before that."""
    error: str = ""
    """Code of the error that ended it."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    """The request's headers, names in lower case."""
    answers: tuple[ObservedAnswer, ...] = ()
    """All answers; none for a request that ended before its answer was sent whole, or that the model has no part in."""

    @property
    def outputs(self) -> list[Output]:
        """What the model answered."""
        return [answer.output for answer in self.answers]

    @property
    def seconds(self) -> float:
        """How long it took; 0 until it has ended."""
        return (self.ended or self.since) - self.since


class Observer(Protocol):
    """Is told of requests for answers of the model."""

    def started(self, request: Observed) -> None:
        """A request was accepted."""

    def first_token(self, request: Observed) -> None:
        """A stream has its first token."""

    def finished(self, request: Observed) -> None:
        """A request ended, however it ended. Called once for each request that started."""


class RequestLog:
    """A line a request, at the level info."""

    def started(self, request: Observed) -> None:
        """See Observer; the line comes at the end."""

    def first_token(self, request: Observed) -> None:
        """See Observer."""

    def finished(self, request: Observed) -> None:
        """See Observer."""
        _log.info(
            "%s %d %s%d+%d tokens, %.3f s",
            request.route,
            request.status,
            f"{request.error}, " if request.error else "",
            request.prompt_tokens,
            request.generated_tokens,
            request.seconds,
        )


class Observers:
    """All observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def started(self, request: Observed) -> None:
        """See Observer."""
        for each in self._observers:
            each.started(request)

    def first_token(self, request: Observed) -> None:
        """See Observer; again does nothing."""
        if request.first_token is None:
            request.first_token = time.monotonic()
            for each in self._observers:
                each.first_token(request)

    def finished(self, request: Observed) -> None:
        """See Observer."""
        request.ended = time.monotonic()
        for each in self._observers:
            each.finished(request)
