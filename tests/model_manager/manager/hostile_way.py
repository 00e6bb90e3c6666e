"""A way to a manager on which somebody sits: bytes are kept, held back and changed, connections are cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self


class HostileWay:
    """Listens at `port`, and passes on what comes. A context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.sent: list[bytearray] = []
        """What clients sent, a connection each."""
        self.passes = threading.Event()
        """Bytes are held back while it is not set."""
        self.passes.set()
        self._changes: set[str] = set()
        self._sockets: list[socket.socket] = [self._listening]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def cut(self) -> None:
        """End all connections."""
        _shut(self._sockets[1:])

    def change(self, direction: str) -> None:
        """Change a bit of what is passed on next, `to` the manager or `from` it."""
        self._changes.add(direction)

    @property
    def has_changed(self) -> bool:
        """Whether all changes are made that were asked for."""
        return not self._changes

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    manager = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, manager]
                self.sent.append(bytearray())
                for direction, here, there in (("to", client, manager), ("from", manager, client)):
                    kept = self.sent[-1] if direction == "to" else bytearray()
                    self._begin(self._pass_on, direction, here, there, kept)

    def _pass_on(self, direction: str, here: socket.socket, there: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(here.recv(65536)):
                self.passes.wait()
                kept += data
                with contextlib.suppress(KeyError):  # nothing is to be changed, or another connection was quicker
                    self._changes.remove(direction)
                    data[-1] ^= 1
                there.sendall(data)
        _shut((here, there))

    def _begin(self, work: Callable[..., None], *given: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=given))
        self._threads[-1].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.passes.set()
        _shut(self._sockets[:1])
        self._threads[0].join()  # after it there are no new ones
        _shut(self._sockets)
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()


def _shut(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
