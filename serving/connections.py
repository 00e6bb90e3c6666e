"""A connection of uvicorn's, with what the replies need of it: a way to cut it, and OpenAI's form for garbage.

A client that sends no request, or half of its headers, is cut after `HEADERS_WITHIN`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import HttpError
from .replies import ABORT

HEADERS_WITHIN = 30.0
"""Seconds from the beginning of a connection or a request to the end of the request's headers."""


class Connection(HttpToolsProtocol):
    """HTTP/1.1, as uvicorn speaks it."""

    scope: Any
    transport: Any
    _cut: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        """A client is there."""
        super().connection_made(transport)
        self._cut = self.loop.call_later(HEADERS_WITHIN, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._cut.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request begins: its scope holds the function that cuts the connection."""
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort
        self._cut.cancel()
        self._cut = self.loop.call_later(HEADERS_WITHIN, self.transport.abort)

    def on_headers_complete(self) -> None:
        """All headers are there; other limits hold from here on."""
        self._cut.cancel()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP."""
        body = msgspec.json.encode(HttpError(400, msg, code="invalid_http").body())
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()
