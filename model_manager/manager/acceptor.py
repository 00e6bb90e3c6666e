"""Accepts clients' connections, as many as the process has descriptors for. Knows no message.

At the limit, further connections wait in the socket's queue until one ends, and descriptors remain for engines. Over
TCP a connection counts once its other side has proved that it holds the key; until then it is one of few, which have
little time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from ..wire.tcp import HANDSHAKE_WITHIN, watch_peer

_SPARE = 64
"""Descriptors for everything but connections: engines, their pipes, the log."""
_PAUSE = 1.0
"""Seconds until the next try, where the machine has no descriptor or memory left."""
_MOST_HANDSHAKES = 32
"""Handshakes under way. A further one ends the oldest: whoever has the key needs but a moment."""
_TOLD_EVERY = 10.0
"""Seconds between two lines of the log about connections that wait, or that have no key."""
_GOODBYE_WITHIN = 1.0
"""Seconds for the other side to end a TLS session too."""
_log = logging.getLogger(__name__)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def _most_connections() -> int:
    """Half of the descriptors where there are few. First take as many as the machine lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2**31 if hard == resource.RLIM_INFINITY else max(1, hard // 2, hard - _SPARE)


class Acceptor:
    """Hands each connection to `handle`, in a task of its own."""

    def __init__(self, handle: Handle, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what connections over TCP begin with."""
        self._handle = handle
        self._handshakes = None if tls is None else Handshakes(tls)
        self._most = _most_connections()
        self._ended = asyncio.Event()
        self._throttle = _Throttle()
        self.handlers: set[asyncio.Task[None]] = set()

    async def run(self, listening: socket.socket) -> None:
        """Accept until it is cancelled."""
        listening.setblocking(False)
        while True:
            if self._handshakes is not None:
                await self._handshakes.make_room()
            sock = await self._next(listening)
            task = asyncio.create_task(self._serve(sock))
            self.handlers.add(task)
            task.add_done_callback(self._done)
            if len(self.handlers) >= self._most and self._throttle.is_due():
                _log.warning("%d connections are open, the most there can be: others wait", self._most)
            while len(self.handlers) >= self._most:
                self._ended.clear()
                await self._ended.wait()

    async def _next(self, listening: socket.socket) -> socket.socket:
        while True:
            try:
                return (await asyncio.get_running_loop().sock_accept(listening))[0]
            except ConnectionAbortedError:
                pass
            except OSError as error:
                _log.warning("cannot accept a connection: %s; the next try is in %g s", error.strerror, _PAUSE)
                await asyncio.sleep(_PAUSE)

    async def _serve(self, sock: socket.socket) -> None:
        if self._handshakes is None:
            await self._handle(*await asyncio.open_unix_connection(sock=sock))
        elif (streams := await self._handshakes.shaken(sock)) is not None:
            await self._handle(*streams)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.handlers.discard(task)
        self._ended.set()


class Handshakes:
    """Lets those in who hold the key."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._under_way: dict[socket.socket, None] = {}
        """Sockets in the order of their beginnings. One that is told to end stays until it has ended."""
        self._ended = asyncio.Event()
        self._refused = 0
        """Since the log was last told of them."""
        self._throttle = _Throttle()

    async def make_room(self) -> None:
        """Wait until one more may begin; end the oldest for it if need be."""
        await asyncio.sleep(0)  # whoever was accepted begins, and those under way go on
        while len(self._under_way) >= _MOST_HANDSHAKES:
            _end(next(iter(self._under_way)))
            self._ended.clear()
            await self._ended.wait()

    async def shaken(self, sock: socket.socket) -> Streams | None:
        """The connection, if the other side holds the key; None if the connection is closed."""
        self._under_way[sock] = None
        host = host_of(sock)
        try:
            return await _secured(sock, self._context)
        except OSError as error:
            if isinstance(error, ssl.SSLError | ConnectionAbortedError):  # the latter after HANDSHAKE_WITHIN
                self._refuse(host, error)
            # else ended by the other side, as a probe of Kubernetes does, or to make room
            traceback.clear_frames(error.__traceback__)  # a cycle: the session's buffers would stay until it is found
        finally:
            del self._under_way[sock]
            self._ended.set()
        return None

    def _refuse(self, host: str, error: OSError) -> None:
        self._refused += 1
        if self._throttle.is_due():
            _log.warning("refused %d connections without the key, the last one of %s: %s", self._refused, host, error)
            self._refused = 0


class _Throttle:
    """Lets a line of the log through every _TOLD_EVERY seconds at most."""

    def __init__(self) -> None:
        self._last = -_TOLD_EVERY

    def is_due(self) -> bool:
        """Whether the line is written; then the next one waits."""
        now = time.monotonic()
        if now - self._last < _TOLD_EVERY:
            return False
        self._last = now
        return True


def host_of(sock: socket.socket) -> str:
    """The host of the other side; empty on a Unix socket, and where the connection has ended."""
    with contextlib.suppress(OSError):
        if sock.family != socket.AF_UNIX:
            return str(sock.getpeername()[0])
    return ""


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


async def _secured(sock: socket.socket, context: ssl.SSLContext) -> Streams:
    """The streams of a connection after its handshake; raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    watch_peer(sock)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        sock,
        ssl=context,
        ssl_handshake_timeout=HANDSHAKE_WITHIN,
        ssl_shutdown_timeout=_GOODBYE_WITHIN,
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
