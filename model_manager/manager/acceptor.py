"""Accepts clients' connections, as many as the process has descriptors for. Knows no message.

At the limit, further connections wait in the socket's queue until one ends, and descriptors remain for engines.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Coroutine
from typing import Any

_SPARE = 64
"""Descriptors for everything but connections: engines, their pipes, the log."""
_PAUSE = 1.0
"""Seconds until the next try, where the machine has no descriptor or memory left."""
_log = logging.getLogger(__name__)

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def _most_connections() -> int:
    """Half of the descriptors where there are few. First take as many as the machine lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2**31 if hard == resource.RLIM_INFINITY else max(1, hard // 2, hard - _SPARE)


class Acceptor:
    """Hands each connection to `handle`, in a task of its own."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._most = _most_connections()
        self._ended = asyncio.Event()
        self.handlers: set[asyncio.Task[None]] = set()

    async def run(self, listening: socket.socket) -> None:
        """Accept until it is cancelled."""
        listening.setblocking(False)
        while True:
            sock = await self._next(listening)
            task = asyncio.create_task(self._serve(sock))
            self.handlers.add(task)
            task.add_done_callback(self._done)
            if len(self.handlers) >= self._most:
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
        await self._handle(*await asyncio.open_unix_connection(sock=sock))

    def _done(self, task: asyncio.Task[None]) -> None:
        self.handlers.discard(task)
        self._ended.set()
