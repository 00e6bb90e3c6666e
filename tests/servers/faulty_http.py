"""An HTTP proxy that injects the faults of networks and busy servers, by rules.

Real sockets on both sides; knows nothing of what the server behind it is.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

_NOT_PASSED_ON = ("connection", "date", "server", "transfer-encoding", "content-length", "keep-alive")
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
_PIECES = 4
ALWAYS = 2**31


class Request(NamedTuple):
    """What a client sent."""

    method: str
    target: str
    """Path and query."""
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The target, percent-decoded."""
        return unquote(self.target)


class Reply(NamedTuple):
    """What the server answered."""

    status: int
    headers: dict[str, str]
    body: bytes


class Answering(Protocol):
    """A client's connection, and the way to the server."""

    def forward(self) -> Reply:
        """Let the server answer."""

    def send(self, reply: Reply, *, length: int | None, pause: float = 0.0) -> None:
        """Send a reply that claims to have a body of that length, or says nothing of it; pausing before each piece."""

    def reset(self) -> None:
        """Break the connection off, as a machine that fails does."""


class Fault(Protocol):
    """What happens in the place of an answer."""

    def happen(self, connection: Answering) -> None:
        """Answer, or do not."""


@dataclass(frozen=True)
class Status:
    """Another answer; the server is not asked."""

    code: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def happen(self, connection: Answering) -> None:
        connection.send(Reply(self.code, self.headers, self.body), length=len(self.body))


@dataclass(frozen=True)
class Lost:
    """The server does what it was asked for; its answer does not arrive."""

    def happen(self, connection: Answering) -> None:
        connection.forward()
        connection.reset()


@dataclass(frozen=True)
class Reset:
    """The connection breaks after so many bytes of the body."""

    after: int

    def happen(self, connection: Answering) -> None:
        reply = connection.forward()
        connection.send(reply._replace(body=reply.body[: self.after]), length=len(reply.body))
        connection.reset()


@dataclass(frozen=True)
class Truncated:
    """The body ends after so many bytes; `claims` says which length was announced: the whole, the part's, or none."""

    after: int
    claims: str = "whole"

    def happen(self, connection: Answering) -> None:
        reply = connection.forward()
        part = reply._replace(body=reply.body[: self.after])
        length = {"whole": len(reply.body), "part": len(part.body), "none": None}[self.claims]
        connection.send(part, length=length)


@dataclass(frozen=True)
class Altered:
    """One bit of the body is another; from the end, if negative."""

    at: int = -2

    def happen(self, connection: Answering) -> None:
        reply = connection.forward()
        body = bytearray(reply.body)
        if body:
            body[self.at % len(body)] ^= 0x01
        connection.send(reply._replace(body=bytes(body)), length=len(body))


@dataclass(frozen=True)
class Slow:
    """The answer comes in pieces, each after so many seconds."""

    seconds: float

    def happen(self, connection: Answering) -> None:
        reply = connection.forward()
        connection.send(reply, length=len(reply.body), pause=self.seconds)


@dataclass(frozen=True)
class Held:
    """No answer before `release` is set."""

    reached: threading.Event
    release: threading.Event

    def happen(self, connection: Answering) -> None:
        self.reached.set()
        self.release.wait(60)
        reply = connection.forward()
        connection.send(reply, length=len(reply.body))


@dataclass
class Rule:
    """The fault of those requests that match, so many, after the first few."""

    matches: Callable[[Request], bool]
    fault: Fault
    times: int
    after: int
    seen: int = 0

    def hits(self, request: Request) -> bool:
        """Whether this request is one of them; counts it."""
        if not self.matches(request):
            return False
        self.seen += 1
        return self.after < self.seen <= self.after + self.times

    @property
    def happened(self) -> int:
        """How often."""
        return min(max(self.seen - self.after, 0), self.times)


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on, each over a connection of its own, and follows the rules."""

    daemon_threads = False

    def __init__(self, upstream: str) -> None:
        """`upstream`: host:port."""
        super().__init__(("127.0.0.1", 0), _Connection)
        self.upstream = upstream
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[Request] = []
        self._rules: list[Rule] = []
        self._lock = threading.Lock()

    def inject(self, fault: Fault, matches: Callable[[Request], bool], times: int = 1, after: int = 0) -> Rule:
        """Let that happen to so many requests that match, after letting the first few of them pass."""
        rule = Rule(matches, fault, times, after)
        with self._lock:
            self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """Make no more faults."""
        with self._lock:
            self._rules.clear()

    def ask(self, request: Request) -> Reply:
        """The server's answer."""
        with contextlib.closing(http.client.HTTPConnection(self.upstream, timeout=60)) as upstream:
            headers = {name: value for name, value in request.headers.items() if name.lower() != "connection"}
            upstream.request(request.method, request.target, request.body or None, headers)
            answer = upstream.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())

    def shutdown_request(self, request: Any) -> None:
        """Close, without the farewell that would come before a reset."""
        self.close_request(request)

    def fault_of(self, request: Request) -> Fault | None:
        """Note a request; what is to happen to it."""
        with self._lock:
            self.requests.append(request)
            hitting = [rule for rule in self._rules if rule.hits(request)]
        return hitting[0].fault if hitting else None


class _Connection(BaseHTTPRequestHandler):
    server: FaultyProxy
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self._request = Request(self.command, self.path, dict(self.headers), self.rfile.read(length))
        self.close_connection = True
        fault = self.server.fault_of(self._request)
        with contextlib.suppress(ConnectionError):
            if fault is not None:
                fault.happen(self)
            else:
                reply = self.forward()
                self.send(reply, length=len(reply.body))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _handle  # noqa: N815

    def forward(self) -> Reply:
        return self.server.ask(self._request)

    def send(self, reply: Reply, *, length: int | None, pause: float = 0.0) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            if name.lower() not in _NOT_PASSED_ON:
                self.send_header(name, value)
        if self.command == "HEAD":
            length = int(reply.headers.get("Content-Length", 0))  # of the body that a GET would have
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()
        body = b"" if self.command == "HEAD" else reply.body
        size = max(-(-len(body) // _PIECES), 1) if pause else len(body) or 1
        for start in range(0, len(body), size):
            time.sleep(pause)
            self.wfile.write(body[start : start + size])

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)

    def log_message(self, *_: object) -> None:
        """Tests look at `requests` instead."""
