"""As many connections as the process may have, and more: they are told so, and those that are open go on."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from millrace.serving.http.reading import FREE, FREE_BODIES
from tests.serving.servers import Server, connected, fake_server, peak_memory
from tests.waiting import eventually

LIMIT = 400
HALVES = 10_000
"""Requests whose heads or bodies the server gets half of."""
_MOST_OF_A_HALF = 32 * 2**10
"""Bytes that such a connection may cost the server: three times what it takes."""
_MOST_OF_BODIES = 64 * 2**20
_HALF_HEAD = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-half: " + 500 * "a"
_HALF_BODY = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {FREE + 1}\r\n\r\n" + FREE * " "
_SPARE = 500
"""Descriptors of a process for anything else."""
_HALF_ASKED = """
import resource, socket, sys
most, port, count = resource.getrlimit(resource.RLIMIT_NOFILE)[1], int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
opened, refused, half = [], 0, sys.stdin.readline()[:-1].encode().decode("unicode_escape").encode()
for _ in range(count):
    sock = socket.create_connection(("127.0.0.1", port), 120)
    try:
        sock.sendall(half)
    except OSError:
        pass
    opened.append(sock)
for sock in opened:
    sock.setblocking(False)
    try:
        refused += bool(sock.recv(1))
    except OSError:
        pass
print(len(opened), refused, flush=True)
sys.stdin.read()
"""
"""Holds its connections until its stdin ends; prints how many there are, and how many the server has answered."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """May have few descriptors open."""
    before = ("sh", "-c", f'ulimit -n {LIMIT}; exec "$0" "$@"')
    with fake_server(tmp_path_factory.mktemp("serve") / "rt", before=before) as started:
        yield started


def is_well(client: httpx.Client) -> bool:
    return client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def is_healthy(server: Server) -> bool:
    with contextlib.suppress(httpx.TransportError):  # it still has too many connections, and cuts this one
        return httpx.get(f"{server.url}/health").status_code == 200
    return False


def test_connections_beyond_the_limit_are_told_so_and_others_go_on(server: Server) -> None:
    stays = httpx.Limits(keepalive_expiry=None)
    with httpx.Client(base_url=server.url, timeout=60, limits=stays) as early, contextlib.ExitStack() as stack:
        assert is_well(early)
        for _ in range(LIMIT):
            sock = stack.enter_context(connected(server))
            with contextlib.suppress(ConnectionError):  # where hundreds come at once, some are cut
                sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        refused = stack.enter_context(connected(server))
        with contextlib.suppress(ConnectionError):
            refused.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            head, _, body = refused.makefile("rb").read().partition(b"\r\n\r\n")
            assert not head or head.startswith(b"HTTP/1.1 503 ")
            assert not body or json.loads(body)["error"]["code"] == "too_many_connections"
        assert is_well(early)
    eventually(lambda: is_healthy(server))
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_one_connection_too_many_reads_why(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        answer = b""
        while not answer:
            sock = stack.enter_context(connected(server))
            with contextlib.suppress(ConnectionError):  # it was not read in time: another one is
                sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                head = sock.recv(12)
                answer = b"" if head == b"HTTP/1.1 200" else head + sock.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"


def test_the_server_takes_all_descriptors_that_the_machine_gives_it(tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = ("sh", "-c", f'ulimit -S -n {LIMIT}; exec "$0" "$@"')
    with fake_server(tmp_path / "rt", before=before) as server:
        soft, _ = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert soft == most


@pytest.mark.parametrize(
    ("half", "most", "are_refused"),
    [
        (_HALF_HEAD, HALVES * _MOST_OF_A_HALF, False),
        (_HALF_BODY, HALVES * _MOST_OF_A_HALF + FREE_BODIES * FREE + _MOST_OF_BODIES, True),
    ],
    ids=["heads", "bodies"],
)
def test_ten_thousand_half_sent_requests_stop_nobody_and_take_little_memory(
    tmp_path: Path, half: str, most: int, are_refused: bool
) -> None:
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors != resource.RLIM_INFINITY and descriptors < HALVES + _SPARE:
        pytest.skip(f"needs {HALVES + _SPARE} descriptors, and the hard limit is {descriptors} (ulimit -Hn)")
    flags = ("--max_bodies_mib", str(_MOST_OF_BODIES // 2**20))
    with fake_server(tmp_path / "rt", *flags) as server, httpx.Client(base_url=server.url, timeout=120) as early:
        assert is_well(early)
        before = peak_memory(server)
        command = [sys.executable, "-c", _HALF_ASKED, str(server.port), str(HALVES)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as halves:
            try:
                assert halves.stdin is not None
                assert halves.stdout is not None
                halves.stdin.write(half.encode("unicode_escape").decode() + "\n")
                halves.stdin.flush()
                opened, refused = map(int, halves.stdout.readline().split())
                assert (opened, refused > 0) == (HALVES, are_refused)
                assert httpx.get(f"{server.url}/health", timeout=120).status_code == 200
                assert peak_memory(server) - before < most
                transport = httpx.HTTPTransport(local_address="127.0.0.2")
                with httpx.Client(base_url=server.url, timeout=120, transport=transport) as other:
                    assert is_well(other)
            finally:
                halves.kill()
        assert is_well(early)
