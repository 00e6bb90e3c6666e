"""The meaning of a server's status: an answer, an error of the row, a failed try, or a job that cannot go on.

    2xx                                    an answer
    408, 409, 424, 425, 429, 5xx           try again; after 429 when the server says so
    401, 402, 403, 404, 405, 3xx           hopeless: the key, the route or the model is wrong for every row
    404 for a model that was there         try again: Triton answers so while it loads its model
    other 4xx (400, 413, 422, …)           this row's fault

Knows statuses and error bodies; sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...wire.endpoint_options import EndpointOptions
from ...wire.errors import InvalidRequest, ModelError, ModelLoadFailed, ModelNotFound
from .hiding import without_key
from .retrying import retry_after

MOST_MESSAGE = 500
"""Characters of a server's message that are kept."""
_RETRIED = frozenset((408, 409, 424, 425, 429))
_OUTAGES = frozenset((502, 503, 504))
_HOPELESS = frozenset((401, 402, 403, 404, 405))
_QUOTA = "insufficient_quota"
_NO_SLOT = "slot unavailable"
"""What PowerInfer says with 404 while each of its slots has a request: one is freed a moment after its answer."""


@dataclass(frozen=True)
class Reply:
    """What came over the connection."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    name: str = ""
    """The name of a gRPC status; empty over HTTP."""


class TryFailed(Exception):
    """A try failed for a reason that may pass. Its text says why."""

    def __init__(
        self, reason: str, *, pause: float | None = None, is_busy: bool = False, is_outage: bool = False
    ) -> None:
        """`pause`: seconds that the server asks for.

        `is_busy`: the server works, but not now; `is_outage`: it says that it can answer no row now.
        """
        super().__init__(reason)
        self.pause = pause
        self.is_busy = is_busy
        self.is_outage = is_outage


def is_healthy(status: int) -> bool:
    """Whether a server can work that answers so at its health route. 4xx does not say otherwise: it may be busy (429),
    or lack the route.
    """
    return status < 500


def judge(reply: Reply, url: str, options: EndpointOptions, *, was_there: bool = False) -> None:
    """Return if there is an answer; raises InvalidRequest, TryFailed or, for all rows, ModelError.

    `was_there`: the server had the model when the job began.
    """
    status = reply.status
    if 200 <= status < 300:
        return
    key = options.key()
    said = message(reply.body, key)
    sentence = f"{url} answered {reply.name or status}" + (f": {said}" if said else "")
    if status == 429 and _QUOTA in said:
        raise ModelLoadFailed(f"{sentence}; its account has no quota left")
    no_slot = status == 404 and _NO_SLOT in said
    if status in _RETRIED or status >= 500 or no_slot or (was_there and status == 404):
        pause = retry_after(reply.headers.get("Retry-After"))
        is_busy = status == 429 or no_slot or pause is not None
        raise TryFailed(sentence, pause=pause, is_busy=is_busy, is_outage=status in _OUTAGES)
    if status in _HOPELESS or status < 400:
        location = without_key(printable(reply.headers.get("Location", "")), key)
        raise _hopeless(status, sentence, options.key_env, location)
    raise InvalidRequest(sentence)


def _hopeless(status: int, sentence: str, key_env: str, location: str) -> ModelError:
    if status in (401, 403):
        key = f"the key in {key_env}" if key_env else "a request without a key (the option key_env names its variable)"
        return ModelLoadFailed(f"{sentence}; it refuses {key}")
    if status in (404, 405):
        return ModelNotFound(f"{sentence}; check the options urls and dialect, and the model's name")
    if status < 400:
        return ModelLoadFailed(f"{sentence}; it points to {location or 'another place'}: name that in urls")
    return ModelLoadFailed(sentence)


def message(body: bytes, key: str) -> str:
    """The sentence of an error's body, without the key and cut; OpenAI's, TGI's and Triton's form, or the text."""
    try:
        text = _said(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body[: 4 * MOST_MESSAGE].decode(errors="replace")
    text = without_key(" ".join(text.split()), key)
    return text if len(text) <= MOST_MESSAGE else text[: MOST_MESSAGE - 1] + "…"


def printable(text: str) -> str:
    """A header's text without its bytes that are no UTF-8, which no message takes."""
    return text.encode(errors="replace").decode()


def _said(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    error = next((value[name] for name in ("error", "message", "detail") if value.get(name)), value)
    if not isinstance(error, dict):
        return str(error)
    code = error.get("code") if isinstance(error.get("code"), str) else None
    said = str(error.get("message") or error)
    return f"{said} ({code})" if code else said
