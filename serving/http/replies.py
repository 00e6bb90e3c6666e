"""Replies over a connection: JSON, or a stream of server-sent events. Notices when nobody reads one.

Knows ASGI's messages (https://asgi.readthedocs.io); no body's meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

import msgspec
from starlette.types import Scope, Send

from .http_errors import HttpError
from .waiting import at_once_or_within

ABORT = "millrace.abort"
"""Under this name a scope has the function that cuts its connection (http_connection.py)."""
WATCH = "millrace.watch"
"""Under this name two functions: one has a third called once the client is gone, the other takes that back."""
ANSWER = "millrace.answer"
"""Under this name a scope has a function that sends a whole answer (status, headers, body) in the place of `send`; it
returns False where it cannot."""
_DONE = b"data: [DONE]\n\n"
_JSON = "application/json"


class HungUp(Exception):
    """The client is gone."""


class Stalled(Exception):
    """The client does not read."""


class HttpReply:
    """The one answer to a request. Routes whose streams have another form have a kind of their own."""

    done = _DONE
    """What ends a stream."""

    def __init__(self, scope: Scope, send: Send, stall_timeout: float) -> None:
        self._abort = scope.get(ABORT)
        self._send = send
        self._answer = scope.get(ANSWER)
        self._stall_timeout = stall_timeout
        self._is_stream = False
        self.status = 0
        """HTTP status; 0 until it is sent."""
        self.num_events = 0
        """Events of a stream so far."""
        self.headers: dict[str, str] = {}
        """Further headers, to be set before the answer begins."""

    async def json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer."""
        body = msgspec.json.encode(value)
        headers = {**self.headers, **(headers or {})}
        if self._answer is not None and self._answer(self._send, status, {"content-type": _JSON, **headers}, body):
            self.status = status
            return
        await self._begin(status, {**headers, "content-length": str(len(body))})
        await self._write({"type": "http.response.body", "body": body})

    async def events(self, values: Iterable[Any]) -> None:
        """Events of a stream, which the first ones begin; sent together."""
        if not self._is_stream:
            self._is_stream = True
            await self._begin(200, {**self.headers, "cache-control": "no-cache"}, "text/event-stream; charset=utf-8")
        encoded = [self.encoded(value) for value in values]
        self.num_events += len(encoded)
        if data := b"".join(encoded):
            await self._write({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """The end of a stream."""
        await self._write({"type": "http.response.body", "body": self.done})

    async def fail(self, error: HttpError) -> None:
        """An error: as the whole answer, or as the last event of a stream that has begun."""
        if not self.status:
            await self.json(self.error_body(error), error.status, error.headers)
        elif self._is_stream:
            await self.events([self.error_event(error)])
            await self.end()

    def encoded(self, value: Any) -> bytes:
        """An event of a stream."""
        return b"data: %b\n\n" % msgspec.json.encode(value)

    def error_body(self, error: HttpError) -> dict[str, Any]:
        """An error as the whole answer."""
        return error.body()

    def error_event(self, error: HttpError) -> dict[str, Any]:
        """An error as the last event of a stream."""
        return self.error_body(error)

    async def _begin(self, status: int, headers: Mapping[str, str], kind: str = _JSON) -> None:
        self.status = status
        given = {"content-type": kind, **headers}
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]
        await self._write({"type": "http.response.start", "status": status, "headers": pairs})

    async def _write(self, message: dict[str, Any]) -> None:
        """Raises Stalled, the connection cut, if the client takes nothing for too long; HungUp if it is gone."""
        try:
            await at_once_or_within(self._stall_timeout, self._send(message))
        except TimeoutError:
            if self._abort is not None:
                self._abort()
            raise Stalled from None
        except OSError:
            raise HungUp from None


async def unless_hung_up(scope: Scope, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, whose request has been read; raises HungUp, the work cancelled, once the client is gone."""
    task, is_gone = asyncio.current_task(), False
    assert task is not None, "an application runs in a task"

    def cancel() -> None:
        nonlocal is_gone
        is_gone = True
        task.cancel()

    watch, unwatch = scope[WATCH]
    watch(cancel)
    try:
        await work
    except asyncio.CancelledError:
        if is_gone and not task.uncancel():
            raise HungUp from None
        raise
    finally:
        unwatch(cancel)
