"""A connection of uvicorn's, with what the replies need of it: a way to cut it, and OpenAI's form for garbage."""

from __future__ import annotations

from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import HttpError
from .replies import ABORT


class Connection(HttpToolsProtocol):
    """HTTP/1.1, as uvicorn speaks it."""

    scope: Any
    transport: Any

    def on_message_begin(self) -> None:
        """A request begins: its scope holds the function that cuts the connection."""
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP."""
        body = msgspec.json.encode(HttpError(400, msg, code="invalid_http").body())
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()
