"""Bodies of requests as they come: half-sent, slow, large, compressed."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive

from millrace.serving.http.http_errors import HttpError
from millrace.serving.http.reading import FREE, FREE_BODIES, BodyMemory
from tests.serving.servers import Server, fake_server, peak_memory
from tests.waiting import eventually

SHORT: dict[str, Any] = {"prompt": "a", "max_tokens": 1}
COMPLETIONS = "POST /v1/completions HTTP/1.1\r\nhost: localhost"
UPLOAD = "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=edge"


@contextlib.contextmanager
def half_sent(server: Server, length: int, sent: int, head: str = COMPLETIONS) -> Iterator[socket.socket]:
    """A connection whose request says that its body has `length` bytes, `sent` of them sent."""
    with socket.create_connection(("127.0.0.1", server.port), 60) as sock:
        sock.sendall(f"{head}\r\ncontent-length: {length}\r\n\r\n".encode() + b" " * sent)
        yield sock


def answer_of(sock: socket.socket) -> tuple[int, str]:
    """The status and the error's code of an answer after which the connection is closed."""
    head, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def test_a_half_sent_body_or_upload_takes_nobodys_place(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", "--max_inflight", "1") as server, contextlib.ExitStack() as stack:
        for head in [COMPLETIONS, UPLOAD] * 5:
            stack.enter_context(half_sent(server, 1000, 0, head))
        assert server.post("/v1/completions", SHORT).status_code == 200


def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    with (
        fake_server(tmp_path / "rt", "--body_timeout", "0.2") as server,
        half_sent(server, 1000, 10) as sock,
    ):
        assert answer_of(sock) == (408, "body_too_slow")


def test_a_refused_body_is_let_go_with_its_answer(tmp_path: Path) -> None:
    """Not when garbage is collected next: the error has a traceback, which has the body."""
    long = b"x " * 2**22
    wrong = [b"\xff" * 2**23, b'{"prompt": "' + long, b'{"max_tokens": "a", "prompt": "%b"}' % long]
    wrong += [b'{"prompt": "%b"}' % long, b'{"model": "other", "prompt": "%b"}' % long]
    with fake_server(tmp_path / "rt") as server:
        for body in wrong:
            assert httpx.post(f"{server.url}/v1/completions", content=body, timeout=120).status_code in (400, 404)
        before = peak_memory(server)
        for body in 8 * wrong:
            httpx.post(f"{server.url}/v1/completions", content=body, timeout=120)
        assert peak_memory(server) - before < 8 * 2**23, "each of forty has eight MiB"


def test_bodies_that_have_no_room_are_refused_and_short_ones_are_read(tmp_path: Path) -> None:
    flags = ("--max_body_mib", "0.5", "--max_bodies_mib", "1")
    with fake_server(tmp_path / "rt", *flags) as server:
        with contextlib.ExitStack() as stack:
            sent = [stack.enter_context(half_sent(server, 2**19, 2**19 - 1)) for _ in range(3)]
            (refused, *others), _, _ = select.select(sent, [], [], 60)
            assert answer_of(refused) == (429, "too_many_bodies")
            assert not others
            assert server.post("/v1/completions", SHORT).status_code == 200
        large = SHORT | {"user": "x" * 2**18}
        eventually(lambda: server.post("/v1/completions", large).status_code == 200)


def test_a_compressed_body_is_refused_with_its_encoding(server: Server) -> None:
    content = gzip.compress(json.dumps(SHORT).encode())
    answer = httpx.post(f"{server.url}/v1/completions", content=content, headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_encoding")
    assert "gzip" in answer.json()["error"]["message"]
    plain = httpx.post(f"{server.url}/v1/completions", json=SHORT, headers={"content-encoding": "identity"})
    assert plain.status_code == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/completions", {}, 413),
        ("/v1/completions", {"content-encoding": "gzip"}, 415),
        ("/v1/completions", {"transfer-encoding": "chunked"}, 413),
        ("/v1/files", {}, 400),
    ],
)
def test_a_client_that_sends_on_after_a_refusal_gets_the_answer(
    server: Server, path: str, headers: dict[str, str], status: int
) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        content, is_chunked = (b"x" * 2**20 for _ in range(50)), "transfer-encoding" in headers
        length = {} if is_chunked else {"content-length": str(50 * 2**20)}
        connection.request("POST", path, content, headers | length, encode_chunked=is_chunked)
        answer = connection.getresponse()
        assert (answer.status, "error" in json.load(answer)) == (status, True)


def test_a_refused_body_that_does_not_end_is_cut_off(server: Server) -> None:
    with half_sent(server, 2**40, 0) as sock, pytest.raises(ConnectionError):
        sock.sendall(bytes(2**29))


def parts(count: int) -> Receive:
    """A body of so many messages; the first one fills what counts nothing, each other one counts 60 bytes."""
    left = [FREE, *[60] * (count - 1)]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * left.pop(0), "more_body": bool(left)}

    return receive


@pytest.mark.parametrize("count", [2, 3])
def test_room_is_given_back_however_a_body_ends(count: int) -> None:
    async def read(memory: BodyMemory) -> None:
        with memory.body("client") as body:
            await body.read({"headers": []}, parts(count), 2**20, 60)

    memory = BodyMemory(100)
    for _ in range(3):
        with pytest.raises(HttpError, match="max_bodies_mib") if count > 2 else contextlib.nullcontext():
            asyncio.run(read(memory))
    assert memory.take(100)
    assert all(memory.free.take("client") for _ in range(FREE_BODIES))


def test_who_waits_for_a_thousand_bodies_has_no_more_bytes_that_count_nothing_and_others_have() -> None:
    async def read(memory: BodyMemory, client: str) -> None:
        with memory.body(client) as body:
            await body.read({"headers": []}, parts(1), 2**20, 60)

    memory = BodyMemory(FREE - 1)
    for _ in range(FREE_BODIES):
        assert memory.free.take("client")
    asyncio.run(read(memory, "another"))
    with pytest.raises(HttpError, match="max_bodies_mib"):
        asyncio.run(read(memory, "client"))
