"""Messages over a stream socket: a four-byte length, then MessagePack, checked against the types that this end accepts.

Stream sockets, because the kernel then tells each side at once that the other is gone, whatever killed it, and on a
Unix socket says who the other is. Over TCP the bytes go through TLS. Knows no message by name. Anything that is not a
well-formed frame of an accepted type raises ProtocolError; the connection that it came on is closed and no other
notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import socket
import struct
import threading
from typing import Any, Generic, TypeVar

import msgspec

from .decoding import msgpack_decoder
from .errors import MillraceError
from .tls import Tls, TlsReader

MAX_FRAME_BYTES = 64 * 2**20
_SMALL_FRAME_BYTES = 2**16
"""A stream's reader buffers as much anyway."""
_LENGTH = struct.Struct("!I")
_encoder = msgspec.msgpack.Encoder()

T = TypeVar("T")


class ProtocolError(MillraceError):
    """The other side sent what is not a message, or one too large."""


class ConnectionLost(MillraceError):
    """The other side is gone."""


def encode(message: msgspec.Struct) -> bytes:
    """One frame; raises ProtocolError for a message larger than MAX_FRAME_BYTES."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a {type(message).__name__} of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def peer_pid_uid(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that connected or listens on a Unix socket, as the kernel recorded them (Linux)."""
    pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


class Connection(Generic[T]):
    """The blocking end: any thread may send, one thread receives messages of type T."""

    def __init__(self, sock: socket.socket, accepts: Any, tls: Tls | None = None) -> None:
        """`tls`: the session that the bytes go through, its handshake done; None on a Unix socket."""
        self._sock = sock
        self._tls = tls
        self._decoder = msgpack_decoder(accepts)
        self._send_lock = threading.Lock()
        self._unsent = b""
        """Bytes that `send_at_once` has not sent yet."""
        self._reader = sock.makefile("rb") if tls is None else io.BufferedReader(TlsReader(sock, tls))

    @property
    def peer_pid(self) -> int:
        """Process id of the other side; 0 where this process's namespace, or its machine, does not have it."""
        return peer_pid_uid(self._sock)[0] if self._sock.family == socket.AF_UNIX else 0

    def limit_sends(self, seconds: float) -> None:
        """Lose the connection when the other side takes nothing for so long."""
        whole, fraction = divmod(seconds, 1)
        limit = struct.pack("ll", int(whole), max(1, int(fraction * 1e6)))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def limit_waits(self, seconds: float) -> None:
        """Lose the connection when a call has waited for so long."""
        self._sock.settimeout(seconds)

    def send(self, message: msgspec.Struct) -> None:
        """Send all of it, waiting while the other side is behind; raises ConnectionLost."""
        self._send_all(encode(message))

    def send_rest(self) -> None:
        """Send what `send_at_once` has left, as `send` does."""
        self._send_all(b"")

    def send_at_once(self, message: msgspec.Struct) -> bool:
        """Send as much of it as the other side takes without waiting; raises ConnectionLost. Returns False if some of
        it is left: whatever is sent next begins with that.
        """
        frame = encode(message)
        try:
            with self._send_lock, contextlib.suppress(BlockingIOError):
                self._unsent += self._sealed(frame)
                self._unsent = self._unsent[self._sock.send(self._unsent, socket.MSG_DONTWAIT) :]
        except OSError as error:
            raise ConnectionLost(str(error)) from None
        return not self._unsent

    def _send_all(self, frame: bytes) -> None:
        try:
            with self._send_lock:
                frame, self._unsent = self._unsent + self._sealed(frame), b""
                self._sock.sendall(frame)
        except OSError as error:
            raise ConnectionLost(str(error)) from None

    def _sealed(self, frame: bytes) -> bytes:
        return frame if self._tls is None else self._tls.seal(frame)

    def receive(self) -> T:
        """The next message; raises ConnectionLost at the end of the stream, ProtocolError for what is no message."""
        message: T = _decode(self._decoder, self._read(_checked_length(self._read(_LENGTH.size))))
        return message

    def _read(self, count: int) -> bytes:
        try:
            data = self._reader.read(count)
        except (OSError, ValueError) as error:
            raise ConnectionLost(str(error)) from None
        if data is None or len(data) < count:
            raise ConnectionLost("the other side closed the connection")
        return data

    def close(self) -> None:
        """End both directions; a thread waiting in `receive` gets ConnectionLost."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._reader.close()  # else the descriptor stays open until the reader is collected
        self._sock.close()

    def abandon(self) -> None:
        """Close the descriptor in a forked process. The connection stays the parent's."""
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())


class FrameRoom:
    """Memory for the frames that have begun to come on many connections. Connections get it in order; small frames take
    none.
    """

    def __init__(self, size: int, within: float) -> None:
        """`size` in bytes, at least MAX_FRAME_BYTES; `within`: seconds for a frame to come whole."""
        self._free = size
        self._within = within
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def read(self, reader: asyncio.StreamReader, length: int) -> bytes:
        """A frame's body; raises ProtocolError for one that does not come in time."""
        taken = length if length > _SMALL_FRAME_BYTES else 0
        async with self._turn if taken else contextlib.nullcontext():
            while self._free < taken:
                self._freed.clear()
                await self._freed.wait()
            self._free -= taken
        try:
            async with asyncio.timeout(self._within):
                return await reader.readexactly(length)
        except TimeoutError:
            raise ProtocolError(f"a frame of {length} bytes did not come within {self._within:g} s") from None
        finally:
            self._free += taken
            self._freed.set()


class AsyncConnection(Generic[T]):
    """The asyncio end: `send` only buffers, `drain` waits while the other side is behind."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, accepts: Any, room: FrameRoom | None = None
    ) -> None:
        """`room`: memory that it shares with other connections; None for one that is trusted."""
        self._reader = reader
        self._writer = writer
        self._decoder = msgpack_decoder(accepts)
        self._read = reader.readexactly if room is None else functools.partial(room.read, reader)

    @property
    def buffered(self) -> int:
        """Bytes sent that the other side has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, message: msgspec.Struct) -> None:
        """Buffer a message; dropped silently once the connection is closing, as it would be had it been sent before."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def drain(self) -> None:
        """Wait until the other side has caught up; raises ConnectionLost."""
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(str(error)) from None

    async def receive(self, most: int = MAX_FRAME_BYTES) -> T:
        """The next message, of at most `most` bytes; raises ConnectionLost at the end of the stream, ProtocolError for
        what is no message.
        """
        try:
            body = await self._read(_checked_length(await self._reader.readexactly(_LENGTH.size), most))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionLost(str(error)) from None
        message: T = _decode(self._decoder, body)
        return message

    def close(self) -> None:
        """Close after what is buffered has been sent."""
        self._writer.close()

    def abort(self) -> None:
        """Close at once, dropping what is buffered."""
        self._writer.transport.abort()


def _checked_length(header: bytes, most: int = MAX_FRAME_BYTES) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > most:
        raise ProtocolError(f"a frame of {length} bytes is over the limit of {most}")
    return int(length)


def _decode(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, MillraceError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a message: {error}") from None
