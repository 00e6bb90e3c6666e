"""Errors, as OpenAI's clients expect them: a status and {"error": {message, type, param, code}}.

Knows millrace's tree of errors; no route, no socket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from millrace.model_manager.wire.errors import (
    ConstraintNotMet,
    DeadlineExceeded,
    EngineError,
    EngineKiller,
    InvalidRequest,
    MillraceError,
    ModelError,
    NonFiniteLogits,
    PromptTooLong,
    RequestAborted,
    RequestError,
    ServerFailed,
)

INVALID, AUTHENTICATION, NOT_FOUND = "invalid_request_error", "authentication_error", "not_found_error"
BUSY, SERVER = "rate_limit_error", "server_error"
_LONGEST = 1000
"""Most characters of a sentence."""
RETRY_AFTER = 1
"""Seconds that a client is asked to wait where the same request may succeed soon."""
_PARAMETER = re.compile(r"([a-z][a-z_0-9]*(?:\[\d+\]|\.[A-Za-z_]\w*)*)(?=[=:]| is )")
"""How a sentence about a parameter begins: `top_p=2: …`, `messages[0].role: …`, `echo is …`."""
_KINDS: tuple[tuple[type[MillraceError], int, str, str | None], ...] = (
    (PromptTooLong, 400, INVALID, "context_length_exceeded"),
    (ConstraintNotMet, 400, INVALID, "constraint_not_met"),
    (DeadlineExceeded, 504, SERVER, "deadline_exceeded"),
    (RequestAborted, 503, SERVER, "cancelled"),
    (NonFiniteLogits, 503, SERVER, "not_finite"),
    (EngineKiller, 503, SERVER, "engine_killer"),
    (ServerFailed, 503, SERVER, "server_failed"),
    (InvalidRequest, 400, INVALID, None),
    (RequestError, 400, INVALID, None),
    (ModelError, 503, SERVER, "model_failed"),
    (EngineError, 503, SERVER, "engine_unavailable"),
    (MillraceError, 500, SERVER, None),
)
"""The first class that fits decides."""


class HttpError(Exception):
    """A request that ends with an error's status; the text is one sentence for who asked."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = INVALID,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message if len(message) <= _LONGEST else f"{message[: _LONGEST - 1]}…")
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error as clients read it."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer."""
        return Response(
            msgspec.json.encode(self.body()), self.status, headers=self.headers, media_type="application/json"
        )


def http_error(error: MillraceError) -> HttpError:
    """One of ours, by its class."""
    _, status, kind, code = next(found for found in _KINDS if isinstance(error, found[0]))
    message = str(error)
    named = _PARAMETER.match(message) if status == 400 else None
    again = isinstance(error, EngineError)
    return HttpError(
        status,
        message,
        kind,
        param=_param(error, named),
        code=code,
        headers={"retry-after": str(RETRY_AFTER)} if again else None,
    )


def _param(error: MillraceError, named: re.Match[str] | None) -> str | None:
    if isinstance(error, PromptTooLong) or str(error) == "the prompt is empty":
        return "prompt"
    return named[1] if named else None


def too_busy(most: int) -> HttpError:
    """More requests than the server answers at once."""
    return HttpError(
        429,
        f"the server answers {most} requests at once (--max_inflight): try again",
        BUSY,
        code="too_many_requests",
        headers={"retry-after": str(RETRY_AFTER)},
    )


def not_in_time(seconds: float) -> HttpError:
    """The server's own limit was reached."""
    return HttpError(
        504, f"the answer took longer than {seconds:g} s (--request_timeout)", SERVER, code="deadline_exceeded"
    )


def internal() -> HttpError:
    """A mistake of the server's own, which its log tells."""
    return HttpError(500, "the server failed at this request; its log says why", SERVER, code="internal_error")
