"""A client's side of a TLS session, apart from its socket: bytes in, bytes out.

A connection has one thread that receives and others that send, and Python's SSLSocket lets no two threads use it at
once. Here a lock is held while bytes are sealed or opened, and never while anyone waits for the other side.
"""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import threading
import time
from collections.abc import Iterator

_RECORD_BYTES = 2**14
_CHUNK_BYTES = 2**16


class Tls:
    """One session. What is sealed must be sent in the order in which it was sealed."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing)
        self._lock = threading.Lock()

    def shake_hands(self, sock: socket.socket, deadline: float) -> None:
        """Run the handshake over `sock`; raises ssl.SSLError or another OSError. `deadline` on the monotonic clock."""
        while not self._is_done(sock):
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            received = sock.recv(_CHUNK_BYTES)
            if not received:
                raise ConnectionResetError("it ended the connection")
            self._incoming.write(received)

    def _is_done(self, sock: socket.socket) -> bool:
        """Go on with the handshake as far as what came lets it; what it says is sent, an error to the other side too"""
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            sock.sendall(self._outgoing.read())
        return True

    def seal(self, data: bytes) -> bytes:
        """What to send for `data`; raises ssl.SSLError."""
        rest = memoryview(data)
        with self._lock:
            while rest:
                rest = rest[self._session.write(rest) :]
            return self._outgoing.read()

    def open(self, received: bytes) -> bytes:
        """The data in what came, if it holds a whole record; raises ssl.SSLError for what the other side did not seal,
        and at the other side's end.
        """
        with self._lock:
            self._incoming.write(received)
            return b"".join(self._records())

    def _records(self) -> Iterator[bytes]:
        with contextlib.suppress(ssl.SSLWantReadError):
            while record := self._session.read(_RECORD_BYTES):
                yield record


class TlsReader(io.RawIOBase):
    """The receiving end of a socket, opened: a raw stream for io.BufferedReader."""

    def __init__(self, sock: socket.socket, tls: Tls) -> None:
        self._sock = sock
        self._tls = tls
        self._opened = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the bytes that are there, at least one. Returns their number, 0 at the end of the stream."""
        while not self._opened:
            received = self._sock.recv(_CHUNK_BYTES)
            if not received:
                return 0
            self._opened = memoryview(self._tls.open(received))
        count = min(len(buffer), len(self._opened))
        buffer[:count] = self._opened[:count]
        self._opened = self._opened[count:]
        return count
