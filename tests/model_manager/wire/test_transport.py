"""Frames over real sockets: whole, bounded, and refused where they are no messages."""

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.wire import transport
from millrace.model_manager.wire.messages import ClientMessage, GetStatus, Hello, ManagerToClient, Ping, Pong, Submit
from millrace.model_manager.wire.transport import (
    MAX_FRAME_BYTES,
    AsyncConnection,
    Connection,
    ConnectionLost,
    FrameRoom,
    ProtocolError,
    encode,
    peer_pid_uid,
)
from tests.model_manager.wire.instances import of_type

HELLO = Hello(protocol=1, pid=2)


class Ends:
    """A connection that accepts a client's messages, and the bare socket at its other end."""

    def __init__(self) -> None:
        self.sock, ours = socket.socketpair()
        self.connection: Connection[Any] = Connection(ours, ClientMessage)

    def close(self) -> None:
        self.connection.close()
        self.connection._reader.close()
        self.sock.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def _frame(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


def test_messages_arrive_in_order_and_as_they_were_sent(ends: Ends) -> None:
    sent = [HELLO, Ping(), Submit(key="k", requests=[]), GetStatus()]
    other: Connection[Any] = Connection(ends.sock.dup(), ManagerToClient)
    for message in sent:
        other.send(message)
    assert [ends.connection.receive() for _ in sent] == sent
    other.close()
    other._reader.close()


def test_a_frame_may_arrive_byte_by_byte(ends: Ends) -> None:
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(ends.connection.receive)
        for byte in encode(HELLO):
            ends.sock.sendall(bytes([byte]))
        assert received.result(timeout=30) == HELLO


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_are_a_message(body: bytes) -> None:
    ends = Ends()
    try:
        ends.sock.sendall(_frame(body))
        with contextlib.suppress(ProtocolError):
            assert isinstance(ends.connection.receive(), msgspec.Struct)
    finally:
        ends.close()


BAD_BODIES = {
    "nothing": b"",
    "no message pack": b"\xc1",
    "a number": msgspec.msgpack.encode(5),
    "a list": msgspec.msgpack.encode([1, 2]),
    "no tag": msgspec.msgpack.encode({"protocol": 1, "pid": 2}),
    "an unknown tag": msgspec.msgpack.encode({"type": "Exec", "code": "1"}),
    "the other direction's": msgspec.msgpack.encode(Pong()),
    "a missing field": msgspec.msgpack.encode({"type": "Hello", "protocol": 1}),
    "a wrong type": msgspec.msgpack.encode({"type": "Hello", "protocol": 1, "pid": "2"}),
    "an impossible parameter": msgspec.msgpack.encode(
        {
            "type": "Submit",
            "key": "k",
            "requests": [{"request_id": "r", "prompt_token_ids": [], "params": {"max_tokens": 0}}],
        }
    ),
    "an impossible setting": msgspec.msgpack.encode({"type": "OpenModel", "folder": "/", "config": {"block_size": 3}}),
    "more after it": msgspec.msgpack.encode(HELLO) + b"\x00",
    "its beginning": msgspec.msgpack.encode(HELLO)[:-3],
    "deep arrays": b"\x91" * 1_000_000,
    "deep arrays in a message": b"\x82\xa4type\xa4Ping\xa1x" + b"\x91" * 1_000_000 + b"\x00",
    "deep maps in a message": b"\x82\xa4type\xa4Ping\xa1x" + b"\x81\xa1a" * 1_000_000 + b"\x00",
    "an array that claims four billion items": b"\x82\xa4type\xa6Submit\xa8requests\xdd\xff\xff\xff\xff",
    "text that is no UTF-8": b"\x82\xa4type\xa6Cancel\xa3key\xa1\xff",
}


@pytest.mark.parametrize("what", BAD_BODIES)
def test_what_is_no_message_is_a_protocol_error(ends: Ends, what: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(ends.sock.sendall, _frame(BAD_BODIES[what]))
        with pytest.raises(ProtocolError, match="not a message"):
            ends.connection.receive()
        sending.result(timeout=30)


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_frame_over_the_limit_is_refused_before_it_arrives(ends: Ends, length: int) -> None:
    ends.sock.sendall(struct.pack("!I", length))
    with pytest.raises(ProtocolError, match=f"{length} bytes is over the limit"):
        ends.connection.receive()


def test_a_message_over_the_limit_is_not_sent(ends: Ends) -> None:
    with pytest.raises(ProtocolError, match=r"a Submit of .* over the limit"):
        ends.connection.send(Submit(key="x" * (MAX_FRAME_BYTES + 1), requests=[]))
    ends.connection.send(Ping())
    assert ends.sock.recv(100) == encode(Ping())


@pytest.mark.parametrize("sent", [b"", b"\0\0", encode(HELLO)[:4], encode(HELLO)[:-1]])
def test_a_stream_that_ends_is_a_lost_connection(ends: Ends, sent: bytes) -> None:
    ends.sock.sendall(sent)
    ends.sock.close()
    with pytest.raises(ConnectionLost):
        ends.connection.receive()


def test_sending_to_who_is_gone_is_a_lost_connection(ends: Ends) -> None:
    ends.sock.close()
    with pytest.raises(ConnectionLost):
        ends.connection.send(HELLO)


def test_closing_wakes_a_thread_that_receives(ends: Ends) -> None:
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(ends.connection.receive)
        ends.connection.close()
        with pytest.raises(ConnectionLost):
            received.result(timeout=30)


def test_frames_of_concurrent_senders_stay_whole(ends: Ends) -> None:
    """Each larger than the socket's buffer, so that one `sendall` takes many writes."""
    sender: Connection[Any] = Connection(ends.sock.dup(), ManagerToClient)
    sent = [Submit(key=str(index) * 300_000, requests=[]) for index in range(8)]
    threads = [threading.Thread(target=sender.send, args=(message,)) for message in sent]
    for thread in threads:
        thread.start()
    received = [ends.connection.receive() for _ in sent]
    for thread in threads:
        thread.join()
    assert sorted(received, key=lambda message: message.key) == sent
    sender.close()
    sender._reader.close()


def test_the_kernel_says_who_the_other_side_is(tmp_path: Path) -> None:
    script = (
        "import socket, sys\n"
        "with socket.socket(socket.AF_UNIX) as sock:\n"
        "    sock.connect(sys.argv[1])\n"
        "    sock.recv(1)\n"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "s")]) as peer:
            listener.settimeout(30)
            sock, _ = listener.accept()
            with sock:
                assert peer_pid_uid(sock) == (peer.pid, os.getuid())


# ── the asyncio end ──────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def _async_ends(room: FrameRoom | None = None) -> AsyncIterator[tuple[socket.socket, AsyncConnection[Any]]]:
    theirs, ours = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    connection: AsyncConnection[Any] = AsyncConnection(reader, writer, ClientMessage, room)
    try:
        yield theirs, connection
    finally:
        theirs.close()
        connection.abort()
        with contextlib.suppress(ConnectionLost, ProtocolError):
            await connection.receive()


def _run(body: Callable[[socket.socket, AsyncConnection[Any]], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), _async_ends() as (theirs, connection):
            await body(theirs, connection)

    asyncio.run(main())


def test_both_ends_speak_the_same_frames() -> None:
    async def body(theirs: socket.socket, connection: AsyncConnection[Any]) -> None:
        blocking: Connection[Any] = Connection(theirs.dup(), ManagerToClient)
        blocking.send(HELLO)
        assert await connection.receive() == HELLO
        connection.send(Pong())
        await connection.drain()
        assert await asyncio.to_thread(blocking.receive) == Pong()
        blocking.close()
        blocking._reader.close()

    _run(body)


@settings(max_examples=100)
@given(st.lists(of_type(ClientMessage), max_size=4))
def test_messages_in_one_burst_are_told_apart(sent: list[Any]) -> None:
    async def body(theirs: socket.socket, connection: AsyncConnection[Any]) -> None:
        theirs.sendall(b"".join(map(encode, sent)))
        assert [await connection.receive() for _ in sent] == sent

    _run(body)


@pytest.mark.parametrize("what", [what for what, bad in BAD_BODIES.items() if len(bad) < 1000])
def test_what_is_no_message_is_a_protocol_error_there_too(what: str) -> None:
    async def body(theirs: socket.socket, connection: AsyncConnection[Any]) -> None:
        theirs.sendall(_frame(BAD_BODIES[what]))
        with pytest.raises(ProtocolError, match="not a message"):
            await connection.receive()

    _run(body)


def test_a_frame_over_the_limit_is_refused_there_too() -> None:
    async def body(theirs: socket.socket, connection: AsyncConnection[Any]) -> None:
        theirs.sendall(struct.pack("!I", MAX_FRAME_BYTES + 1))
        with pytest.raises(ProtocolError, match="over the limit"):
            await connection.receive()

    _run(body)


def test_a_stream_that_ends_is_a_lost_connection_there_too() -> None:
    async def body(theirs: socket.socket, connection: AsyncConnection[Any]) -> None:
        theirs.sendall(encode(HELLO)[:-1])
        theirs.close()
        with pytest.raises(ConnectionLost):
            await connection.receive()

    _run(body)


def test_what_the_other_side_has_not_taken_is_counted_and_waited_for() -> None:
    async def body(theirs: socket.socket, connection: AsyncConnection[Any]) -> None:
        message = Submit(key="x" * 4_000_000, requests=[])
        connection.send(message)
        assert connection.buffered > 0
        blocking: Connection[Any] = Connection(theirs.dup(), ClientMessage)
        received = asyncio.create_task(asyncio.to_thread(blocking.receive))
        await connection.drain()
        assert await received == message
        assert connection.buffered == 0
        blocking.close()
        blocking._reader.close()

    _run(body)


def test_sending_on_a_closing_connection_is_dropped() -> None:
    async def body(theirs: socket.socket, connection: AsyncConnection[Any]) -> None:
        connection.send(Pong())
        connection.close()
        connection.send(Pong())
        assert await asyncio.to_thread(theirs.recv, 1000) == encode(Pong())
        assert await asyncio.to_thread(theirs.recv, 1000) == b""

    _run(body)


def test_frames_over_the_shared_memory_are_not_read_until_others_have_come() -> None:
    frame = encode(Submit(key="x" * 5_000_000, requests=[]))

    async def main() -> None:
        room = FrameRoom(8_000_000, within=60)
        async with asyncio.timeout(60), _async_ends(room) as (first, one), _async_ends(room) as (second, other):
            receiving = [asyncio.create_task(each.receive()) for each in (one, other)]
            await asyncio.to_thread(first.sendall, frame[:-1])
            second.setblocking(False)
            taken = second.send(frame)
            while taken < len(frame):  # until nobody takes more: what lies in the socket and in its reader
                await asyncio.sleep(0.1)
                try:
                    taken += second.send(frame[taken:])
                except BlockingIOError:
                    break
            assert taken < 1_000_000
            first.send(frame[-1:])
            assert len((await receiving[0]).key) == 5_000_000
            second.setblocking(True)
            await asyncio.to_thread(second.sendall, frame[taken:])
            assert len((await receiving[1]).key) == 5_000_000

    asyncio.run(main())


def test_a_frame_that_does_not_come_whole_gives_its_memory_back() -> None:
    async def main() -> None:
        room = FrameRoom(1_000_000, within=0.01)
        async with asyncio.timeout(60), _async_ends(room) as (first, one), _async_ends(room) as (second, other):
            first.sendall(struct.pack("!I", 1_000_000))
            with pytest.raises(ProtocolError, match=r"a frame of 1000000 bytes did not come within 0.01 s"):
                await one.receive()
            room._within = 60.0
            whole = encode(Submit(key="x" * 100_000, requests=[]))
            second.sendall(whole)
            assert len((await other.receive()).key) == 100_000

    asyncio.run(main())


def test_the_limit_leaves_room_for_a_batch_of_long_prompts() -> None:
    assert transport.MAX_FRAME_BYTES >= 64 * 128_000 * 5, "64 prompts of 128k tokens, at most 5 bytes each"
