"""Clients that never end their headers, or the body of a request that is answered, do not keep their connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from millrace.serving.http import http_connection
from tests.waiting import eventually

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n"


@pytest.fixture
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A server whose connections have so many seconds for their headers, and so many for the rest of a body."""
    for name, seconds in zip(("HEADERS_WITHIN", "REST_WITHIN"), request.param, strict=True):
        monkeypatch.setattr(http_connection, name, seconds)
    app = Starlette(routes=[Route("/", lambda _request: PlainTextResponse("there"))])
    config = uvicorn.Config(app, port=0, http=http_connection.HttpConnection, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize(
    ("address", "sent"),
    [((0.1, 30.0), b""), ((0.1, 30.0), REQUEST), ((0.5, 30.0), REQUEST + b"\r\n" + REQUEST)],
    indirect=["address"],
)
def test_a_client_without_the_end_of_its_headers_is_cut(address: tuple[str, int], sent: bytes) -> None:
    for _ in range(20):  # a whole request has to come in time too
        if (found := answered_until_cut(address, sent)) == sent.count(b"\r\n\r\n"):
            break
    assert found == sent.count(b"\r\n\r\n")


def answered_until_cut(address: tuple[str, int], sent: bytes) -> int:
    """How many requests are answered before the connection ends."""
    answer = b""
    with socket.create_connection(address, timeout=120) as client, contextlib.suppress(ConnectionError):
        client.sendall(sent)
        while data := client.recv(1000):
            answer += data
    return answer.count(b"there")


@pytest.mark.parametrize("address", [(120.0, 0.1)], indirect=True)
def test_a_client_that_never_ends_a_body_whose_request_is_answered_is_cut(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(REQUEST + b"Transfer-Encoding: chunked\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
        client.settimeout(0.01)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 3000:  # half a minute
                client.sendall(b"1\r\na\r\n")
                sent += 1
                with contextlib.suppress(TimeoutError):
                    if not client.recv(1000):
                        break
        assert sent < 3000
