"""One call over gRPC and its reply, with limits of time and size. Knows no dialect and tries once.

A status becomes HTTP's for the same failure, and keeps its name, so that one table (`judging.py`) says what follows.
grpc's own retries are off. Calls end in its threads, and only wake the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import grpc

from ...wire.endpoint_options import EndpointOptions
from .dialects import Call
from .judging import Reply
from .over_http import MOST_BYTES

_STATUSES = {
    "OK": 200,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "ALREADY_EXISTS": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "UNIMPLEMENTED": 405,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP's status for each of gRPC's; 500 for the others (UNKNOWN, INTERNAL, DATA_LOSS, CANCELLED)."""
_TOO_LARGE = re.compile(r"message.*(larger than|exceeds)", re.IGNORECASE)
_PUSHBACK = "grpc-retry-pushback-ms"
_MILLISECONDS = re.compile("[0-9]{1,12}")
_LONGEST_RECONNECT_MS = 1000
"""Most time between two attempts to connect: how long a call waits for its next try is decided elsewhere."""


class GrpcConnections:
    """See `Connections`: a channel to each server."""

    def __init__(self, options: EndpointOptions, key: str) -> None:
        """`key` may be empty."""
        self._metadata = [(name.lower(), value) for name, value in options.headers(key).items()]
        self._options = options
        self._channels: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        self._channels = {url: _channel(url, self._options.connect_timeout) for url in self._options.addresses}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self._channels.values():
            channel.close()

    async def send(self, base: str, call: Call, take: Callable[[bytes], None] | None = None) -> Reply:
        """Call a method, which streams nothing."""
        del take
        return await self._ask(base, call, self._options.timeout)

    async def probe(self, base: str, call: Call) -> Reply:
        """Call a method that answers at once."""
        return await self._ask(base, call, self._options.connect_timeout)

    async def _ask(self, base: str, call: Call, timeout: float) -> Reply:
        asked = self._channels[base].unary_unary(call.route).future(call.body, timeout, metadata=self._metadata)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by then
                loop.call_soon_threadsafe(ended.set)

        asked.add_done_callback(wake)
        try:
            await ended.wait()
        finally:
            asked.cancel()
        return self._reply(asked)

    def _reply(self, call: Any) -> Reply:
        code, said = call.code(), call.details() or ""
        if code is grpc.StatusCode.OK:
            return Reply(200, {}, call.result(), code.name)
        status = _STATUSES.get(code.name, 500)
        if status == 429 and _TOO_LARGE.search(said):
            status = 413
        return Reply(status, _pause(call.trailing_metadata() or ()), said.encode(), code.name)


def _pause(metadata: Any) -> dict[str, str]:
    """How long the server asks to be left alone, as HTTP says it."""
    found = {name: str(value) for name, value in metadata}
    if _MILLISECONDS.fullmatch(found.get(_PUSHBACK, "")):
        return {"Retry-After": str(int(found[_PUSHBACK]) / 1000)}
    return {"Retry-After": found["retry-after"]} if "retry-after" in found else {}


def _channel(url: str, connect_timeout: float) -> Any:
    settings = [
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", int(1000 * connect_timeout)),  # how long one attempt to connect may take
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", _LONGEST_RECONNECT_MS),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", MOST_BYTES),
    ]
    parts = urlsplit(url)
    if parts.scheme == "grpcs":
        return grpc.secure_channel(parts.netloc, _credentials(), settings)
    return grpc.insecure_channel(parts.netloc, settings)


def _credentials() -> Any:
    """TLS that trusts whom HTTPS trusts here: the system's authorities, or those in SSL_CERT_FILE."""
    roots = ssl.get_default_verify_paths().cafile
    return grpc.ssl_channel_credentials(Path(roots).read_bytes() if roots else None)
