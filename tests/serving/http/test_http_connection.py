"""Connections that end early, say no HTTP, do nothing or do not read: no request outlives its client, and the server
answers others meanwhile.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.metrics.scrapes import scraped
from tests.serving.servers import Server, connected, fake_server, request
from tests.waiting import eventually

LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 1000, "temperature": 0}


def is_well(server: Server) -> bool:
    """Whether a request is answered."""
    return server.post("/v1/completions", {"prompt": "b", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_has_its_request_cancelled(slow_server: Server, stream: bool) -> None:
    with connected(slow_server) as sock:
        sock.sendall(request(LONG | {"stream": stream, "n": 2}))
        eventually(lambda: slow_server.outstanding() == 2)
        if stream:
            assert sock.recv(20).startswith(b"HTTP/1.1 200")
    eventually(lambda: slow_server.outstanding() == 0)
    assert is_well(slow_server)


def test_a_client_that_hangs_up_while_it_waits_for_a_credit_has_its_request_cancelled(slow_server: Server) -> None:
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(connected(slow_server)) for _ in range(40)]
        for sock in first:
            sock.sendall(request(LONG))
        eventually(lambda: slow_server.outstanding() >= 4)
        held = slow_server.outstanding()
        assert held < 40, "the others wait for a credit"
    eventually(lambda: slow_server.outstanding() == 0)
    assert is_well(slow_server)


def test_a_half_closed_connection_counts_as_closed(slow_server: Server) -> None:
    with connected(slow_server) as sock:
        sock.sendall(request(LONG))
        eventually(lambda: slow_server.outstanding() == 1)
        sock.shutdown(socket.SHUT_WR)
        eventually(lambda: slow_server.outstanding() == 0)


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    flags = ("--stall_timeout", "0.5", "--max_model_len", "200000")
    with fake_server(tmp_path / "rt", *flags) as server, connected(server) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        many = LONG | {"max_tokens": 100_000, "stream": True, "logprobs": 5, "n": 4}
        sock.sendall(request(many))
        stalled = {"route": "/v1/completions", "error": "stalled"}
        eventually(lambda: scraped(f"{server.url}/metrics").total("http_requests_total", **stalled) == 1)
        eventually(lambda: server.outstanding() == 0)
        assert is_well(server)


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 50 + b"\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"{}\r\n\r\n"],
    ids=["zeros", "tls", "no path", "other version", "json"],
)
def test_bytes_that_are_no_http_are_refused(server: Server, garbage: bytes) -> None:
    with connected(server) as sock:
        sock.sendall(garbage + b"\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert sock.makefile("rb").read().startswith(b"HTTP/1.1 400")
    assert is_well(server)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_client_of_http_1_0_gets_its_stream_without_chunks(server: Server, path: str) -> None:
    asked = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    content = json.dumps(asked | {"max_tokens": 5, "stream": True}).encode()
    with connected(server) as sock:
        sock.sendall(f"POST {path} HTTP/1.0\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
        head, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")  # its end is the connection's
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    events = body.decode().split("\n\n")
    assert all(event.startswith("data: ") for event in events[:-1])
    assert events[-2:] == ["data: [DONE]", ""]


def test_a_whole_answer_to_http_1_0_has_its_length(server: Server) -> None:
    content = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    with connected(server) as sock:
        sock.sendall(f"POST /v1/completions HTTP/1.0\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
        head, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert json.loads(body)["object"] == "text_completion"


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (f"GET /{'x' * 20_000} HTTP/1.1", 414, "url_too_long"),
        (f"GET /health?{'x' * 200_000}", 414, "url_too_long"),
        (f"GET /health HTTP/1.1\r\na: {'x' * 66_000}", 431, "headers_too_long"),
        ("GET /health HTTP/1.1" + f"\r\na: {'x' * 1000}" * 70, 431, "headers_too_long"),
        (f"GET /health HTTP/1.1\r\n{'a' * 500_000}", 431, "headers_too_long"),
        ("POST /v1/completions HTTP/1.1\r\ntransfer-encoding: gzip", 501, "unsupported_encoding"),
        ("POST /v1/completions HTTP/1.1\r\ntransfer-encoding: gzip, chunked", 501, "unsupported_encoding"),
        ("POST /v1/completions HTTP/1.1\r\ncontent-length: 3\r\nexpect: tea", 417, "unknown_expectation"),
    ],
    ids=["url", "url without end", "header", "headers", "header without end", "encoding", "encodings", "expectation"],
)
def test_a_head_that_cannot_be_taken_is_refused_before_its_body(
    server: Server, head: str, status: int, code: str
) -> None:
    with connected(server) as sock:
        with contextlib.suppress(ConnectionError):  # it is refused while it is sent
            sock.sendall(f"{head}\r\n\r\n".encode())
        told, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")
    assert told.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(body)["error"]["code"] == code
    assert is_well(server)


def test_a_later_head_of_a_connection_that_cannot_be_taken_is_refused_with_its_reason(server: Server) -> None:
    with connected(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert answered(sock) == {"status": "ok"}
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nexpect: tea\r\n\r\n")
        assert sock.makefile("rb").read().startswith(b"HTTP/1.1 417 ")


def test_what_the_server_takes_is_told_whatever_the_path(server: Server) -> None:
    with connected(server) as sock:
        sock.sendall(b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = sock.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 204 ")
    assert b"\r\nallow: GET, HEAD, POST" in answer


def test_a_body_is_asked_for_where_it_is_read(server: Server) -> None:
    whole = request({"prompt": "a", "max_tokens": 1}).replace(
        b"host: localhost", b"host: localhost\r\nexpect: 100-continue"
    )
    head, _, content = whole.partition(b"\r\n\r\n")
    with connected(server) as sock:
        for _ in range(2):  # the connection stays
            sock.sendall(head + b"\r\n\r\n")
            assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(content)
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            assert (answer.status, json.load(answer)["object"]) == (200, "text_completion")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("POST /v1/nothing HTTP/1.1\r\ncontent-length: 3", 404),
        ("GET /v1/completions HTTP/1.1\r\ncontent-length: 3", 405),
        ("POST /v1/completions HTTP/1.1\r\ncontent-length: 104857600", 413),
    ],
)
def test_a_body_is_not_asked_for_where_it_is_refused(server: Server, line: str, status: int) -> None:
    with connected(server) as sock:
        sock.sendall(f"{line}\r\nexpect: 100-continue\r\n\r\n".encode())
        answer = sock.makefile("rb").read()  # it closes the connection: the client may send the body or not
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"\r\nconnection: close\r\n" in answer


def test_a_client_of_http_1_0_is_asked_for_nothing(server: Server) -> None:
    whole = request({"prompt": "a", "max_tokens": 1}).replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nexpect: 100-continue\r\n")
    with connected(server) as sock:
        sock.sendall(whole)
        assert sock.makefile("rb").read().startswith(b"HTTP/1.1 200 ")


BAD_CHUNK = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZZ\r\nhello"


@pytest.mark.parametrize("later", [b"{}\r\n\r\n", b"GET / HTTP/1.1\r\nexpect: tea\r\n\r\n", BAD_CHUNK])
def test_an_answer_is_whole_whatever_comes_after_its_request(slow_server: Server, later: bytes) -> None:
    with connected(slow_server) as sock:
        sock.sendall(request({"prompt": "a", "max_tokens": 2}) + later)
        head, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body)["object"] == "text_completion"


def test_a_bad_chunk_ends_its_request(server: Server) -> None:
    with connected(server) as sock:
        sock.sendall(BAD_CHUNK.replace(b"transfer-", b"content-encoding: gzip\r\ntransfer-"))
        assert b"HTTP/1.1 4" in sock.makefile("rb").read()
    eventually(lambda: scraped(f"{server.url}/metrics").total("http_requests_running") == 0)


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_another_protocol_may_be_offered_and_the_body_is_read(server: Server, protocol: bytes) -> None:
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: " + protocol + b"\r\nhost: localhost\r\n"
    asked = request({"prompt": "a", "max_tokens": 1}).replace(b"host: localhost\r\n", offer)
    with connected(server) as sock:
        for part in (asked, asked[:40], asked[40:-3], asked[-3:]):
            sock.sendall(part)
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") < 2:
            answers += (more := sock.recv(65536))
            assert more, answers


def test_each_request_of_a_connection_has_its_own_body_wherever_it_is_cut(server: Server) -> None:
    prompts = ["a", "b c", "d e f"]
    sent = b"".join(request({"prompt": prompt}, "/tokenize") for prompt in prompts)
    whole = [server.post("/tokenize", {"prompt": prompt}).json() for prompt in prompts]
    length = len(request({"prompt": "a"}, "/tokenize"))
    for cut in (0, length - 1, length, length + 1, len(sent) - 1):
        with connected(server) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(sent[:cut])
            if cut >= length:
                assert answered(sock) == whole[0]
            sock.sendall(sent[cut:])
            for expected in whole[cut >= length :]:
                assert answered(sock) == expected, cut


def answered(sock: socket.socket) -> Any:
    """The next answer on a connection; nothing more is read from it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += (byte := sock.recv(1))
        assert byte, head
    length = int(re.findall(rb"content-length: (\d+)", head)[0])
    return json.loads(sock.recv(length, socket.MSG_WAITALL))


WITHOUT_END = {
    "trailer": b"0\r\nx: ",
    "chunk's extension": b"1;",
    "chunk's size": b"0",
}
CHUNKED = b"host: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
ENDLESS = 2**22
"""Bytes that no head and no trailer may have."""


@pytest.mark.parametrize("begun", WITHOUT_END.values(), ids=WITHOUT_END)
def test_what_has_no_end_behind_a_body_is_refused(server: Server, begun: bytes) -> None:
    with connected(server) as sock:
        with contextlib.suppress(ConnectionError):  # it is refused while it is sent
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + b"1\r\na\r\n" + begun + b"0" * ENDLESS)
        told, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "headers_too_long"
    assert is_well(server)


@pytest.mark.parametrize("begun", WITHOUT_END.values(), ids=WITHOUT_END)
def test_what_has_no_end_behind_a_request_that_is_answered_ends_the_connection(server: Server, begun: bytes) -> None:
    with connected(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n" + CHUNKED + begun)
        assert answered(sock) == {"status": "ok"}
        with pytest.raises(ConnectionError):  # the server's buffers and the kernel's have less
            sock.sendall(b"0" * ENDLESS * 8)
    assert is_well(server)


@pytest.mark.parametrize("trailers", [b"x: %b\r\n" % (b"0" * 200_000), b"x: %b\r\n" % (b"0" * 1000) * 70])
def test_trailers_that_come_at_once_are_bounded_as_headers_are(server: Server, trailers: bytes) -> None:
    content = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    chunks = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(content), content, trailers)
    with connected(server) as sock:
        with contextlib.suppress(ConnectionError):  # it is refused while it is sent
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + chunks)
        told, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "headers_too_long"
    assert is_well(server)


def test_bodies_of_many_chunks_with_extensions_and_trailers_are_read(server: Server) -> None:
    """All of them together are longer than a head may be."""
    content = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    extended = b"".join(b"1;note=%b\r\n%c\r\n" % (b"x" * 20_000, byte) for byte in content)
    sent = b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + extended + b"0\r\nx: %b\r\n\r\n" % (b"x" * 20_000)
    with connected(server) as sock:
        for _ in range(2):
            sock.sendall(sent)
            assert answered(sock)["object"] == "text_completion"


def test_a_request_that_is_cut_off_in_its_body_leaves_nothing(server: Server) -> None:
    with connected(server) as sock:
        sock.sendall(request(LONG)[:-5])
    assert is_well(server)


def test_five_hundred_idle_connections_are_no_hindrance(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(connected(server)).sendall(b"GET /health HTTP/1.1\r\n")
        assert is_well(server)
        assert httpx.get(f"{server.url}/ready").status_code == 200
