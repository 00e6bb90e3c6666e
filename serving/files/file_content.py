"""A file's content over a connection, piece by piece; a client that does not read is cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.types import Receive, Scope, Send

from ..http.http_errors import NOT_FOUND, HttpError
from ..http.replies import ABORT
from .file_store import StoredFile

_PIECE = 2**18


class FileContent:
    """An answer: an ASGI application for one request."""

    def __init__(self, path: Path, file: StoredFile, stall_timeout: float) -> None:
        self._path = path
        self._file = file
        self._stall_timeout = stall_timeout

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Send all of it; raises HttpError (404) for a file that was just removed."""
        try:
            stream = self._path.open("rb")
        except FileNotFoundError:
            told = f"{self._file.id}: there is no such file"
            raise HttpError(404, told, NOT_FOUND, param="id", code="not_found") from None
        with stream:
            try:
                await self._send(send, {"type": "http.response.start", "status": 200, "headers": self._headers()})
                while piece := await asyncio.to_thread(stream.read, _PIECE):
                    await self._send(send, {"type": "http.response.body", "body": piece, "more_body": True})
                await self._send(send, {"type": "http.response.body", "body": b""})
            except (TimeoutError, OSError):
                if ABORT in scope:
                    scope[ABORT]()

    async def _send(self, send: Send, message: dict[str, object]) -> None:
        async with asyncio.timeout(self._stall_timeout):
            await send(message)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % self._file.bytes)]
