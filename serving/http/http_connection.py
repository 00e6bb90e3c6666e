"""A connection of uvicorn's, with what the replies need of it: a way to cut it, and OpenAI's form for garbage.

A client that sends no request, or half of its headers, is cut after `HEADERS_WITHIN`. One that is refused in the middle
of its body gets its answer: what it still sends is read and thrown away, up to a bound. One that is answered before its
body ends has `REST_WITHIN` for the rest of it. Where the process has almost as many descriptors open as it may, a new
connection is told so and closed, and those that are open go on.

The parser keeps a header, a trailer, and the size of a chunk with its extensions until they end, so what comes of them
is counted.

A request whose head cannot be taken (too long, an encoding or an expectation that is not known) is refused here, before
there is an application for it. After a refusal nothing of the connection is read as a request.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, NoReturn

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .cycles import answer_at_once, body_at_once, close_unless_read, end_with_connection
from .http_errors import RETRY_AFTER, SERVER, HttpError
from .reading import WHOLE_BODY
from .replies import ABORT, ANSWER, WATCH

MOST_OF_URL = 2**14
MOST_OF_HEADERS = 2**16
"""Bytes of a request's line, and of its headers, and of its trailers, names and values."""
_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
HEADERS_WITHIN = 30.0
"""Seconds from the beginning of a connection or a request to the end of the request's headers."""
REST_WITHIN = 30.0
"""Seconds for what is left of a body whose request is answered."""
_SPARE = 128
"""Descriptors for everything but connections: files, the engine's sockets, processes, connections that are refused."""
_AT_REFUSAL = 64
"""How many of these are for connections that are refused, each for `_REFUSED_FOR` seconds."""
_REFUSED_FOR = 1.0
"""Seconds that a client has for reading why; closing at once could take that from it."""
_LINGER_FOR = 30.0
_LINGER_IDLE = 5.0
_LINGER_BYTES = 2**28
"""How a refused body is read: for so many seconds, until nothing came for so many, and so many bytes at most."""


def allow_connections() -> None:
    """Let this process have as many descriptors as the machine lets it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, soft - _SPARE) if soft != resource.RLIM_INFINITY else 2**31


class HttpConnection(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn speaks it, and 1.0 without chunks."""

    scope: Any
    transport: Any
    _cut: asyncio.TimerHandle | None = None
    _watchers: set[Callable[[], None]] | None
    """Who is told that the client is gone; None once it is."""
    is_ending = False
    """The server ends: no further request is taken."""
    _is_refused = False
    _is_in_head = False
    _is_in_body = False
    """Between the end of a head and the end of its body."""
    _headers_size = 0
    """Bytes of the headers, or of the trailers, that are whole."""
    _kept = 0
    """Bytes that have come since a head began or ended, or since the last piece of a body."""
    _unread = 0
    """Bytes of a refused body that are still thrown away."""
    _linger_until = 0.0
    _earlier: Any = None
    """The cycle of the request before the newest."""
    _received = b""
    """What is being parsed."""

    def connection_made(self, transport: Any) -> None:
        """A client is there."""
        super().connection_made(transport)
        self._watchers = set()
        self._watch = (self._add_watcher, self._watchers.discard)
        self._cut_after(HEADERS_WITHIN)
        above = len(self.connections) - _most_connections()
        if above > _AT_REFUSAL:
            transport.abort()
        elif above > 0:
            self._refuse(_FULL)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if not self._is_refused:
            self._received = data
            self._kept += len(data)
            super().data_received(data)
            self._received = b""  # or each connection would keep its last bytes
            self._limit()
        elif self._unread:
            self._throw_away(len(data))

    def _limit(self) -> None:
        """Bound the time and the memory of what has begun and not ended."""
        if self._is_refused:
            return
        if self._cut is None and (self._is_in_head or self._has_rest):
            self._cut_after(HEADERS_WITHIN if self._is_in_head else REST_WITHIN)
        if self._kept > MOST_OF_URL + MOST_OF_HEADERS:
            self._refuse(_LONG_HEADERS if self._is_in_head else _LONG_REST)

    @property
    def _has_rest(self) -> bool:
        """Whether more of a body is to come whose request is answered."""
        return self._is_in_body and self.cycle is not None and self.cycle.response_complete

    def shutdown(self) -> None:
        """Take no further request, and close after the answer of the one that is there."""
        self.is_ending = True
        super().shutdown()

    def refuse_unread(self) -> None:
        """The server ends, and waits for bodies no more: a request whose body has not come is told so."""
        if self._is_in_body and not self._is_refused:
            self._refuse(_ENDING)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._keep()
        super().connection_lost(exc)
        watchers, self._watchers = self._watchers, None
        for tell in [*(watchers or ())]:
            tell()

    def _add_watcher(self, tell: Callable[[], None]) -> None:
        """Whoever waits for nothing else of the client has it read on, so that its end is noticed."""
        self.flow.resume_reading()
        if self._watchers is None:
            tell()
        else:
            self._watchers.add(tell)

    def on_message_begin(self) -> None:
        """A request begins: its scope holds the function that cuts the connection."""
        super().on_message_begin()
        self._is_in_head, self._headers_size, self._kept = True, 0, 0
        self.scope[ABORT] = self.transport.abort
        self.scope[WATCH] = self._watch
        self._keep()  # most heads are whole with the bytes that begin them, and need no limit

    def _cut_after(self, seconds: float) -> None:
        """End the connection, unless something comes before."""
        self._keep()
        self._cut = self.loop.call_later(seconds, self.transport.abort)

    def _keep(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def on_url(self, url: bytes) -> None:
        """A part of the path and what follows it."""
        self.url += url
        if len(self.url) > MOST_OF_URL:
            self._stop(_LONG_URL)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is whole, or a trailer, which is no header of the request."""
        self._headers_size += len(name) + len(value)
        if self._headers_size > MOST_OF_HEADERS:
            self._stop(_LONG_HEADERS if self._is_in_head else _LONG_TRAILERS)
        if self._is_in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """All headers are there; other limits hold from here on."""
        if self._offers_another_protocol():
            return
        self._is_in_head, self._headers_size, self._kept = False, 0, 0
        self._keep()
        self._check_head()
        self._is_in_body = True
        self._earlier = self.cycle
        super().on_headers_complete()
        self.cycle.transport = _Transport(self, self.cycle)  # type: ignore[assignment]
        self.scope[ANSWER] = partial(answer_at_once, self.cycle)
        if self.scope["http_version"] == "1.0":
            end_with_connection(self.cycle)
        elif self.expect_100_continue:
            close_unless_read(self.cycle, lambda: self.is_ending)
        else:
            self.scope[WHOLE_BODY] = partial(body_at_once, self.cycle)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._kept = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is there."""
        if not self._offers_another_protocol():
            self._is_in_body = False
            self._keep()
            super().on_message_complete()

    def _offers_another_protocol(self) -> bool:
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """A client may offer another protocol, and is answered in this one (RFC 9110, 7.8). The parser takes no body of
        such a request, so it gets the request again, without the offer.
        """
        stopped = sys.exc_info()[1]
        if not self._offers_another_protocol() or stopped is None:
            return
        rest = self._received[stopped.args[0] :]
        lines = [b"%b: %b" % header for header in self.headers if header[0] not in (b"upgrade", b"connection")]
        head = [b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url), *lines, b"", b""]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(head) + rest)

    def _check_head(self) -> None:
        """Stop at what no route can answer."""
        for name, value in self.headers:
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                self._stop(_encoded(value))
            if name == b"expect" and self.parser.get_http_version() != "1.0":  # which knows no expectations
                self.expect_100_continue = value.strip().lower() == b"100-continue"
                if not self.expect_100_continue:
                    self._stop(_unexpected(value))
        if self.is_ending:
            self._stop(_ENDING)
        if self.url == b"*" and self.parser.get_method() == b"OPTIONS":  # about the server, whatever the route
            self._stop(None)

    def end(self, cycle: Any) -> None:
        """Close, as a request's answer is sent. Bytes that nobody reads would take the answer from the client."""
        if not (cycle.response_complete and cycle.more_body):
            self.transport.close()
            return
        self._is_refused, self._unread = True, _LINGER_BYTES
        self._linger_until = self.loop.time() + _LINGER_FOR
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._throw_away(0)

    def _throw_away(self, count: int) -> None:
        self._unread = max(0, self._unread - count)
        self._keep()
        if not self._unread:
            self.transport.abort()
            return
        self._cut_after(min(_LINGER_IDLE, self._linger_until - self.loop.time()))

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP."""
        if not self._is_refused:
            self._refuse(HttpError(400, msg, code="invalid_http"))

    def _stop(self, error: HttpError | None) -> NoReturn:
        """End the reading in the middle of a head; None is the answer to a question about the server."""
        self._refuse(error)
        raise _Refused

    def _refuse(self, error: HttpError | None) -> None:
        """Answer what no application does, and close. Where an earlier request is being answered, that answer is the
        connection's last one.
        """
        self._is_refused = True
        if self._has_rest:
            self.transport.abort()
            return
        cycle = self.cycle
        if cycle is not None and cycle.more_body and self.pipeline:  # its turn has not come
            self.pipeline.popleft()
            cycle = self._earlier
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or not cycle.more_body:
                cycle.keep_alive = False
                return
            cycle.disconnected = True  # its body does not go on, and this is its answer
            cycle.message_event.set()
        self.transport.write(_last_answer(error))
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._cut_after(_REFUSED_FOR)


class _Refused(Exception):
    """Stops the parser."""


class _Transport:
    """A request's way to its connection: the head of a whole answer goes with its body, and closing waits for the
    client.
    """

    def __init__(self, connection: HttpConnection, cycle: Any) -> None:
        self._connection, self._cycle = connection, cycle
        self._held: bytes | None = None
        """The head that is kept; None until there is a head."""
        self.is_closing = connection.transport.is_closing

    def write(self, data: bytes) -> None:
        """Send; the head of a body that follows is kept until then, so that one call of the system sends both."""
        cycle = self._cycle
        if self._held is None and cycle.response_started:
            self._held = b""
            if cycle.expected_content_length and cycle.scope["method"] != "HEAD":
                self._held = data
                return
        elif self._held:
            data, self._held = self._held + data, b""
        self._connection.transport.write(data)

    def close(self) -> None:
        """The answer is sent."""
        self._connection.end(self._cycle)


def _last_answer(error: HttpError | None) -> bytes:
    """An error as the whole answer of a connection that is closed then; None is the answer to `OPTIONS *`."""
    if error is None:
        return f"HTTP/1.1 204 No Content\r\nallow: {_METHODS}\r\nconnection: close\r\n\r\n".encode()
    body = msgspec.json.encode(error.body())
    head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
    more = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
    return f"{head}{more}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _not_now(message: str, code: str) -> HttpError:
    return HttpError(503, message, SERVER, code=code, headers={"retry-after": str(RETRY_AFTER)})


_FULL = _not_now("the server has as many connections as it can: try again", "too_many_connections")
_ENDING = _not_now("the server ends, and takes no request", "server_ends")
_LONG_URL = HttpError(414, f"the path and its query are longer than {MOST_OF_URL} bytes", code="url_too_long")
_LONG_HEADERS = HttpError(431, f"the headers are longer than {MOST_OF_HEADERS} bytes", code="headers_too_long")
_LONG_TRAILERS = HttpError(431, f"the trailers are longer than {MOST_OF_HEADERS} bytes", code="headers_too_long")
_LONG_REST = HttpError(
    431,
    f"trailers, or sizes and extensions of chunks, are longer than {MOST_OF_URL + MOST_OF_HEADERS} bytes",
    code="headers_too_long",
)


def _encoded(value: bytes) -> HttpError:
    said = f"transfer-encoding {value[:40].decode('latin-1')!r}: takes chunked"
    return HttpError(501, said, code="unsupported_encoding")


def _unexpected(value: bytes) -> HttpError:
    said = f"expect {value[:40].decode('latin-1')!r}: takes 100-continue"
    return HttpError(417, said, code="unknown_expectation")
