"""SIGTERM, Ctrl-C and a terminal that closes: running requests end within a limit, and a second signal ends at once."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes import stopped
from tests.serving.metrics.scrapes import scraped
from tests.serving.servers import Server, connected, fake_server, request, running
from tests.waiting import eventually

TRIES = 20
STREAM: dict[str, Any] = {"prompt": "a", "max_tokens": 40, "temperature": 0, "stream": True}


def streamed(server: Server, body: dict[str, Any], *signals: signal.Signals) -> list[str]:
    """The events of a stream, in whose middle the server gets signals."""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        for number in signals:
            server.process.send_signal(number)
        return [line.removeprefix("data: ") for line in (first, *lines) if line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_streams_end(tmp_path: Path, number: signal.Signals) -> None:
    with fake_server(tmp_path / "rt", step=0.02) as server:
        whole = server.post("/v1/completions", STREAM | {"stream": False}).json()["choices"][0]["text"]
        events = streamed(server, STREAM, number)
        assert events[-1] == "[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == whole
        assert server.ended() == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")


def test_a_signal_while_the_model_is_loaded_ends_the_server_without_a_word_of_the_model(tmp_path: Path) -> None:
    for number in range(TRIES):
        runtime = tmp_path / f"rt{number}"
        with running(runtime, "--backend", "fake", "--linger", "0.5") as server:
            server.process.send_signal(signal.SIGTERM)
            assert server.ended() == 0
        if not server.lines[1].endswith("is ready"):  # else the signal came when the model was loaded
            break
    assert [line.split()[0] for line in server.lines] == ["serving", "ending:"]
    eventually(lambda: not runtime.exists(), "the manager has ended")


def test_what_runs_beyond_the_limit_is_cancelled_and_told(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", "--shutdown_timeout", "0.3", step=0.05) as server:
        events = streamed(server, STREAM | {"max_tokens": 1000}, signal.SIGTERM)
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["error"]["code"] == "cancelled"
        assert server.ended() == 0


UPLOAD = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=b\r\n"
HALVES = {"completion": request(STREAM)[:-5], "upload": UPLOAD + b"content-length: 100\r\n\r\n--b\r\n"}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_a_request_whose_body_does_not_come_within_the_limit_is_told(tmp_path: Path, half: bytes) -> None:
    with fake_server(tmp_path / "rt", "--shutdown_timeout", "0.3") as server, connected(server) as sock:
        sock.sendall(half)
        eventually(lambda: has_begun(server), "the server waits for the rest")
        server.process.send_signal(signal.SIGTERM)
        told, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: " in told
        assert json.loads(body)["error"]["code"] == "server_ends"
        assert server.ended() == 0


def test_a_request_whose_body_comes_within_the_limit_is_answered(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt") as server, connected(server) as sock:
        asked = request(STREAM | {"stream": False})
        sock.sendall(asked[:-5])
        eventually(lambda: has_begun(server), "the server waits for the rest")
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: any(line.startswith("ending") for line in server.lines), "the server has the signal")
        sock.sendall(asked[-5:])
        assert sock.makefile("rb").read().startswith(b"HTTP/1.1 200 ")
        assert server.ended() == 0


def has_begun(server: Server) -> bool:
    """Whether the server has the head of a request, or an upload's beginning."""
    uploads = [*Path(f"{server.runtime}-files").glob("*/files/.new-*")]
    return bool(uploads) or scraped(f"{server.url}/metrics").total("http_requests_running") == 1


def test_a_request_behind_one_that_runs_is_taken_no_more(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", step=0.02) as server, connected(server) as sock:
        sock.sendall(request(STREAM))
        received = sock.recv(2**16)
        with stopped(server.engine_pid()):  # so that the stream goes on
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: any(line.startswith("ending") for line in server.lines), "the server has the signal")
            sock.sendall(request(STREAM | {"stream": False}))
        with contextlib.suppress(ConnectionError):  # the server may have ended before it read the second one
            while data := sock.recv(2**16):
                received += data
        assert received.count(b"HTTP/1.1 ") == 1
        assert received.count(b"[DONE]") == 1
        assert server.ended() == 0


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", step=0.05) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            streamed(server, STREAM | {"max_tokens": 1000}, signal.SIGTERM, signal.SIGINT)
        assert server.ended() == 130
