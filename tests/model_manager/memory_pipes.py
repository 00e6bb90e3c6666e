"""Connections in memory: a client's real threads on one side, a test that delivers each frame on the other.

A test goes on only when every thread of the clients waits for something that the test alone brings about. So what
happens is the same each time.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import msgspec

from millrace.model_manager.client import session as session_module
from millrace.model_manager.client.election import Election
from millrace.model_manager.client.generation import Decoder
from millrace.model_manager.client.session import Session
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ManagerUnavailable
from millrace.model_manager.wire.messages import ClientMessage, ManagerToClient, OpenModel
from millrace.model_manager.wire.transport import Connection

_PATIENCE = 60.0
_HEADER = 4
_up, _down = (msgspec.msgpack.Decoder(of) for of in (ClientMessage, ManagerToClient))


class Waiting:
    """The threads that wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()

    def add(self, thread: threading.Thread) -> None:
        with self._changed:
            self._threads.add(thread)
            self._changed.notify_all()

    def discard(self, threads: Iterable[threading.Thread]) -> None:
        with self._changed:
            self._threads -= set(threads)

    def until_all_do(self, threads: Iterable[threading.Thread]) -> None:
        """Return when each of the threads waits, or has ended."""
        threads = list(threads)
        with self._changed:
            for _ in range(int(_PATIENCE / 0.1)):
                if self._changed.wait_for(
                    lambda: all(each in self._threads or not each.is_alive() for each in threads), timeout=0.1
                ):
                    return
        raise AssertionError(f"a thread does not come to rest: {threads}")


class Watched(threading.Condition):
    """A condition that knows who waits for it. Who is notified does not wait any more, even before it runs."""

    def __init__(self, waiting: Waiting, lock: Any = None) -> None:
        super().__init__(lock)
        self._waiting = waiting
        self._here: set[threading.Thread] = set()

    def wait(self, timeout: float | None = None) -> bool:
        me = threading.current_thread()
        self._here.add(me)
        self._waiting.add(me)
        try:
            return super().wait(timeout)
        finally:
            self._here.discard(me)
            self._waiting.discard([me])

    def notify_all(self) -> None:
        self._waiting.discard(self._here)
        self._here.clear()
        super().notify_all()


class ClientSocket:
    """The client's end of a connection: as much of a socket as a Link uses."""

    def __init__(self, waiting: Waiting) -> None:
        self.sent: deque[bytes] = deque()
        """Frames that the manager has not got yet."""
        self.is_closed = False
        """Closed by the client, or by its death."""
        self._arrived = Watched(waiting)
        self._bytes = bytearray()
        self._is_over = False

    def feed(self, data: bytes) -> None:
        """Bytes of the manager arrive."""
        with self._arrived:
            self._bytes += data
            self._arrived.notify_all()

    def end(self) -> None:
        """The manager is gone; what has arrived can be read."""
        with self._arrived:
            self._is_over = True
            self._arrived.notify_all()

    family = socket.AF_UNIX

    def setsockopt(self, *_: object) -> None: ...

    def getsockopt(self, *_: object) -> bytes:
        return struct.pack("3i", 0, os.geteuid(), os.getegid())

    def makefile(self, _mode: str) -> ClientSocket:
        return self

    def read(self, count: int) -> bytes:
        with self._arrived:
            self._arrived.wait_for(lambda: len(self._bytes) >= count or self._is_over or self.is_closed)
            data = bytes(self._bytes[:count])
            del self._bytes[:count]
            return data

    def send(self, data: bytes, _flags: int = 0) -> int:
        self.sendall(data)
        return len(data)

    def sendall(self, data: bytes) -> None:
        with self._arrived:
            if self._is_over or self.is_closed:
                raise BrokenPipeError("the manager is gone")
            if data:
                self.sent.append(bytes(data))

    def shutdown(self, _how: int) -> None:
        self.close()

    def close(self) -> None:
        with self._arrived:
            self.is_closed = True
            self._arrived.notify_all()

    def messages(self) -> list[ClientMessage]:
        """What the manager has not got yet."""
        return [_up.decode(frame[_HEADER:]) for frame in self.sent]


class ManagerWriter:
    """The manager's end of a connection: as much of a StreamWriter as an AsyncConnection uses."""

    def __init__(self) -> None:
        self.sent: deque[bytes] = deque()
        """Frames that the client has not got yet."""
        self.is_closed = False
        self.transport = SimpleNamespace(get_write_buffer_size=lambda: 0, abort=self.close)

    def get_extra_info(self, _name: str) -> Any:
        peer = struct.pack("3i", 1, os.geteuid(), os.getegid())
        return SimpleNamespace(family=socket.AF_UNIX, getsockopt=lambda *_: peer)

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def drain(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    def messages(self) -> list[ManagerToClient]:
        """What the client has not got yet."""
        return [_down.decode(frame[_HEADER:]) for frame in self.sent]


class Elections:
    """Stands in for an Election: a client that wants a manager waits until the test gives it a connection."""

    def __init__(self, waiting: Waiting) -> None:
        self._changed = Watched(waiting)
        self._given: ClientSocket | None = None
        self.is_wanted = False

    def connect(self, give_up: threading.Event) -> Any:
        with self._changed:
            self.is_wanted = True
            while self._given is None and not give_up.is_set():
                self._changed.wait(0.01)  # nobody tells of `give_up`
            self.is_wanted = False
            if self._given is None:
                raise ManagerUnavailable("no manager answers")
            sock, self._given = self._given, None
            return Connection(cast(socket.socket, sock), ManagerToClient)

    def fence(self) -> None:
        """The manager here has no process: what it says after this, nobody hears."""

    def give(self, sock: ClientSocket) -> None:
        with self._changed:
            self._given = sock
            self._changed.notify_all()


def watched_session(
    waiting: Waiting, config: ModelConfig, elections: Elections, settings: ManagerConfig, decoder: Decoder | None
) -> Session:
    """A Session whose own waits are known."""
    opening, connector = OpenModel(config, "/", settings), cast(Election, elections)
    known = {**vars(threading), "Condition": partial(Watched, waiting)}
    with mock.patch.object(session_module, "threading", SimpleNamespace(**known)):
        return Session(opening, connector, settings, decoder)


def receiving_thread(session: Session) -> threading.Thread:
    return session._threads[0]
