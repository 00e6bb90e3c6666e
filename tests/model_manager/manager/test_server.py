"""A manager closes clients that send what they should not, and no other client notices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.manager.server import ManagerServer
from millrace.model_manager.wire.messages import (
    PROTOCOL,
    CloseModel,
    GetStatus,
    Hello,
    ManagerToClient,
    Message,
    OpenModel,
    Ping,
    Pong,
    Refused,
    Status,
    Submit,
    Welcome,
)
from millrace.model_manager.wire.request import Request
from millrace.model_manager.wire.runtime import RuntimeDir
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.transport import MAX_FRAME_BYTES, Connection, ConnectionLost
from tests.model_manager.manager.machine import PATIENCE, SETTINGS, Machine
from tests.model_manager.manager.stand_in_engine import ANSWER, answer
from tests.waiting import eventually


@pytest.fixture
def busy(machine: Machine) -> Machine:
    """A machine whose manager has a client already."""
    machine.open()
    return machine


def connect(machine: Machine) -> socket.socket:
    sock = RuntimeDir(machine.runtime).connect()
    assert sock is not None
    sock.settimeout(PATIENCE)
    return sock


def expect_closed(sock: socket.socket) -> None:
    with sock:
        try:
            while sock.recv(65536):
                pass
        except ConnectionResetError:
            pass


def expect_answer(client: EngineClient, name: str) -> None:
    tokens = client.submit([ANSWER, 5], SamplingParams(), request_id=name).result(PATIENCE).token_ids
    assert tokens == answer([ANSWER, 5], 5)


def expect_unharmed(machine: Machine) -> None:
    expect_answer(machine.open(), "after")
    assert machine.starts() == 1


def frame(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


HELLO = frame(msgspec.msgpack.encode(Hello(protocol=PROTOCOL, pid=1)))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        frame(b"\xc1\xff\x00garbage"),
        frame(b"\x91" * 100_000),
        struct.pack("!I", MAX_FRAME_BYTES + 1),
        frame(msgspec.msgpack.encode(Ping())),
        HELLO + HELLO,
        HELLO + frame(b""),
        HELLO + frame(msgspec.msgpack.encode({"type": "Unheard"})),
        HELLO + frame(msgspec.msgpack.encode(Submit("unopened", []))),
        HELLO + frame(msgspec.msgpack.encode({"type": "OpenModel", "config": {"max_num_seqs": -1}, "folder": "/"})),
    ],
    ids=["http", "garbage", "nested", "oversized", "no hello", "two hellos", "empty", "unknown", "unopened", "invalid"],
)
def test_a_malformed_message_closes_its_connection_alone(busy: Machine, data: bytes) -> None:
    sock = connect(busy)
    sock.sendall(data)
    expect_closed(sock)
    expect_unharmed(busy)


def test_a_connection_that_ends_in_the_middle_of_a_message_harms_nobody(busy: Machine) -> None:
    with connect(busy) as sock:
        sock.sendall(HELLO + struct.pack("!I", 1000) + b"half")
    expect_unharmed(busy)


_NAMED_SERVERS_OTHERWISE = 10
"""The protocol in which the requests of servers were counted as `server`."""


@pytest.mark.parametrize("protocol", [PROTOCOL + 1, _NAMED_SERVERS_OTHERWISE])
def test_another_protocol_is_refused_with_what_to_do(busy: Machine, protocol: int) -> None:
    connection: Connection[ManagerToClient] = Connection(connect(busy), ManagerToClient)
    connection.send(Hello(protocol=protocol, pid=1))
    refused = connection.receive()
    assert isinstance(refused, Refused)
    assert "MILLRACE_RUNTIME_DIR" in refused.error.message
    with pytest.raises(ConnectionLost):
        connection.receive()
    connection.close()


def exchange(connection: Connection[ManagerToClient], message: Message) -> ManagerToClient:
    connection.send(message)
    return connection.receive()


def test_pings_are_answered_and_closing_what_is_not_open_is_no_offence(busy: Machine) -> None:
    connection: Connection[ManagerToClient] = Connection(connect(busy), ManagerToClient)
    assert isinstance(exchange(connection, Hello(protocol=PROTOCOL, pid=1)), Welcome)
    connection.send(CloseModel("unheard-of"))
    assert isinstance(exchange(connection, Ping()), Pong)
    assert isinstance(exchange(connection, GetStatus()), Status)
    connection.close()


def test_a_client_that_never_reads_holds_up_nobody(busy: Machine) -> None:
    sock = connect(busy)
    sock.sendall(HELLO)
    opening = OpenModel(busy.resolved_config(), str(busy.model), SETTINGS)
    sock.sendall(frame(msgspec.msgpack.encode(opening)))
    requests = [Request(str(index), [ANSWER, 50], SamplingParams()) for index in range(2000)]
    sock.sendall(frame(msgspec.msgpack.encode(Submit(opening.config.key, requests))))
    for _ in range(2000):
        sock.sendall(frame(msgspec.msgpack.encode(Ping())))
    expect_unharmed(busy)
    sock.close()


def test_what_is_begun_and_not_ended_is_closed_in_time(machine: Machine) -> None:
    client = machine.open_under_hasty_manager()
    begun = [b"", HELLO[:-1], HELLO + struct.pack("!I", 1000) + b"half", HELLO + struct.pack("!I", MAX_FRAME_BYTES)]
    socks = [connect(machine) for _ in begun]
    for sock, data in zip(socks, begun, strict=True):
        with contextlib.suppress(ConnectionError):  # closed already
            sock.sendall(data)
    for sock in socks:
        expect_closed(sock)
    assert "no Hello within hang_timeout = 2 s" in RuntimeDir(machine.runtime).log.read_text()
    expect_answer(client, "meanwhile")
    expect_answer(machine.open(), "after")


def test_a_first_frame_is_small(busy: Machine) -> None:
    sock = connect(busy)
    sock.sendall(struct.pack("!I", 4097))
    expect_closed(sock)
    assert "a frame of 4097 bytes is over the limit of 4096" in RuntimeDir(busy.runtime).log.read_text()


FEW_DESCRIPTORS = (
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); "
    "runpy.run_module('tests.model_manager.manager.stand_in_manager', run_name='__main__')"
)


def test_more_connections_than_descriptors_wait_and_harm_nobody(machine: Machine) -> None:
    client = machine.open(command=("-P", "-c", FEW_DESCRIPTORS), max_num_seqs=8)
    idle = [connect(machine) for _ in range(120)]
    log = RuntimeDir(machine.runtime).log
    eventually(lambda: "50 connections are open, the most there can be: others wait" in log.read_text())
    expect_answer(client, "meanwhile")
    for sock in idle:
        sock.close()
    expect_unharmed(machine)
    assert log.stat().st_size < 20_000


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")
def test_another_user_cannot_get_in(busy: Machine) -> None:
    script = f"""
import os, socket
sock = socket.socket(socket.AF_UNIX)
os.setresuid(65534, 65534, 65534)
try:
    sock.connect({str(busy.runtime / "manager.sock")!r})
except PermissionError:
    raise SystemExit(0)
raise SystemExit(1)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, cwd="/").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")
def test_another_user_that_got_in_all_the_same_is_closed(busy: Machine) -> None:
    inside = os.open(busy.runtime, os.O_PATH)  # as if the folder had been open to all
    busy.runtime.chmod(0o711)
    busy.runtime.parent.chmod(0o711)
    (busy.runtime / "manager.sock").chmod(0o777)
    knocking = f"""
import os, socket
os.fchdir({inside})
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
sock = socket.socket(socket.AF_UNIX)
sock.connect("manager.sock")
try:
    sock.sendall({HELLO!r})
    raise SystemExit(len(sock.recv(100)))
except OSError:
    pass  # closed before it could say anything
"""
    done = subprocess.run([sys.executable, "-c", knocking], check=False, pass_fds=[inside])
    os.close(inside)
    busy.runtime.chmod(0o1700)  # as millrace made it: it removes no other
    assert done.returncode == 0
    expect_unharmed(busy)


def test_a_client_that_has_connected_is_served_although_the_starter_has_ended_before_it_is_accepted(
    tmp_path: Path,
) -> None:
    runtime = RuntimeDir(tmp_path)
    ended = os.getpid()  # this process is no child of its own

    async def serve(listening: socket.socket) -> None:
        await asyncio.wait_for(ManagerServer(SETTINGS, starter=ended).run(listening), PATIENCE)

    lock = runtime.try_lock()
    assert lock is not None
    listening = runtime.listen(lock)
    assert listening is not None
    with listening:
        sock = runtime.connect()
        assert sock is not None
        connection: Connection[ManagerToClient] = Connection(sock, ManagerToClient)
        connection.send(Hello(protocol=PROTOCOL, pid=1))
        with ThreadPoolExecutor(1) as beside:
            served = beside.submit(asyncio.run, serve(listening))
            assert isinstance(connection.receive(), Welcome)
            connection.close()
            served.result(PATIENCE)
    os.close(lock)
