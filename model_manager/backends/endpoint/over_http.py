"""One HTTP request and its reply, with limits of time and size. Knows no dialect and tries once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

import aiohttp

from ...wire.endpoint_options import EndpointOptions
from .dialects import Call
from .hiding import without_key
from .judging import Reply, TryFailed

MOST_BYTES = 64 * 2**20
"""Bytes of a reply that are read, at most."""
_KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: less than servers keep theirs (5 s for vLLM's)."""
_STREAM, _DATA = "text/event-stream", b"data:"
_JSON = {"Content-Type": "application/json", "Accept": "application/json"}


class HttpConnections:
    """See `Connections`: a pool of connections that are kept for a while."""

    def __init__(self, options: EndpointOptions, key: str) -> None:
        """`key` may be empty."""
        self._key = key
        self._headers = _JSON | options.headers(key)
        self._timeout = aiohttp.ClientTimeout(total=options.timeout, connect=options.connect_timeout)
        self._probe_timeout = aiohttp.ClientTimeout(total=options.connect_timeout)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # The balancer limits requests in flight, so the pool needs no limit of its own.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, base: str, call: Call, take: Callable[[bytes], None] | None = None) -> Reply:
        """POST a JSON body."""
        return await self._ask("POST", base + call.route, self._timeout, call.body, take)

    async def probe(self, base: str, call: Call) -> Reply:
        """GET a route."""
        return await self._ask("GET", base + call.route, self._probe_timeout)

    async def _ask(
        self,
        method: str,
        url: str,
        timeout: aiohttp.ClientTimeout,
        body: bytes | None = None,
        take: Callable[[bytes], None] | None = None,
    ) -> Reply:
        assert self._session is not None, "entered"
        try:
            async with self._session.request(
                method, url, data=body, timeout=timeout, allow_redirects=False
            ) as response:
                if take is not None and response.content_type == _STREAM and response.ok:
                    await _take_events(response, take)
                    return Reply(response.status, response.headers, b"")
                return Reply(response.status, response.headers, await _read(response))
        except TimeoutError as error:
            raise TryFailed(f"{url}: no answer in time: {_named(error)}") from None
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            raise TryFailed(f"{url}: {without_key(_named(error), self._key)}") from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    whole = bytearray()
    async for part in _parts(response):
        whole += part
    return bytes(whole)


async def _take_events(response: aiohttp.ClientResponse, take: Callable[[bytes], None]) -> None:
    """Server-sent events whose data are one line each."""
    rest = bytearray()
    async for part in _parts(response):
        rest += part
        if b"\n" not in part:  # a long line is not copied for each of its parts
            continue
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                take(bytes(line.removeprefix(_DATA).strip()))


async def _parts(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MOST_BYTES:
            response.close()
            raise TryFailed(f"{response.url}: its answer has more than {MOST_BYTES} bytes")
        yield part


def _named(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
        return f"its certificate is not trusted: {why}; SSL_CERT_FILE names a file of authorities to trust"
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno:
        return f"no connection: {os.strerror(error.errno)}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
