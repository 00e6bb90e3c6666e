"""A connection's order and signs of life, over real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from millrace.model_manager.client.link import Link
from millrace.model_manager.wire.config import ManagerConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.messages import (
    PROTOCOL,
    Cancel,
    ClientMessage,
    Hello,
    ManagerToClient,
    Ping,
    Refused,
    Welcome,
)
from millrace.model_manager.wire.transport import Connection, ConnectionLost

Pair = tuple[socket.socket, Connection[ClientMessage]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The client's socket, and the manager's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    manager: Connection[ClientMessage] = Connection(theirs, ClientMessage)
    with ours:
        try:
            yield ours, manager
        finally:
            manager.close()


def linked(sock: socket.socket) -> Link:
    return Link(Connection(sock, ManagerToClient), hang_timeout=1000.0, fence=lambda: None)


def test_hello_comes_before_the_first_sign_of_life_even_if_that_is_due_before_the_welcome(pair: Pair) -> None:
    sock, manager = pair
    link = linked(sock)
    link.check(interval=1000.0)
    assert manager.receive() == Hello(protocol=PROTOCOL, pid=os.getpid())
    assert manager.receive() == Ping()
    manager.send(Welcome(protocol=PROTOCOL, pid=1, settings=ManagerConfig(load_timeout=4.0)))
    assert link.await_welcome().load_timeout == 4.0, "before a model is loaded"
    link.close()


def test_a_manager_that_is_behind_holds_up_nobody_and_gets_all_in_order(pair: Pair) -> None:
    sock, manager = pair
    link = linked(sock)
    assert isinstance(manager.receive(), Hello)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = [Cancel("model", [f"{index}" * 2000] * 2) for index in range(100)]
    for message in sent:
        link.enqueue(message)
        link.flush_at_once()
    assert [manager.receive() for _ in sent] == sent
    link.close()


@pytest.mark.parametrize(("reason", "raised"), [(ConfigError("another version"), ConfigError), (None, ConnectionLost)])
def test_a_refusal_is_raised_and_an_ending_manager_is_a_lost_connection(
    pair: Pair, reason: ConfigError | None, raised: type[Exception]
) -> None:
    sock, manager = pair
    link = linked(sock)
    manager.send(Refused((reason or ConnectionLost("it is ending")).info()))
    with pytest.raises(raised):
        link.await_welcome()
    link.close()


def test_a_manager_that_is_gone_already_is_a_lost_connection(pair: Pair) -> None:
    sock, manager = pair
    manager.close()
    with pytest.raises(ConnectionLost):
        linked(sock)
