"""Deaths while a request runs: its client is answered all the same. A job beside the server shares its engine."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace.model_manager.wire.messages import Status
from millrace.pipelines.cli import dispatch
from tests.json_lines import write_rows
from tests.processes import stopped
from tests.serving.servers import MODEL, Server, fake_server, running
from tests.waiting import eventually

TRIES = 20
ASKED: dict[str, Any] = {"model": MODEL, "prompt": "a", "max_tokens": 60, "temperature": 0}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Takes 20 ms a token."""
    with fake_server(tmp_path_factory.mktemp("deaths") / "rt", step=0.02) as server:
        yield server


@pytest.fixture(scope="module")
def expected(slow: Server) -> str:
    """The undisturbed answer."""
    text: str = slow.client().completions.create(**ASKED).choices[0].text
    return text


def is_killed_while_it_streams(server: Server, role: str, expected: str) -> bool:
    """Whether a process was killed with -9 in the middle of a streamed answer, which is as expected either way."""
    texts: list[str] = []
    was_running = False
    for part in server.client().completions.create(stream=True, **ASKED):
        texts.append(part.choices[0].text)
        if len(texts) == 5:
            status = server.status()
            (victim,) = (process.pid for process in status.processes if process.role == role)
            was_running = bool(server.outstanding())
            os.kill(victim, signal.SIGKILL)
    assert "".join(texts) == expected
    return was_running


@pytest.mark.parametrize("role", ["engine", "manager"])
def test_a_process_that_is_killed_is_replaced_and_the_answer_goes_on(slow: Server, expected: str, role: str) -> None:
    assert any(is_killed_while_it_streams(slow, role, expected) for _ in range(TRIES)), "else it was answered before"


def test_a_request_that_is_not_streamed_survives_the_death_of_its_engine(slow: Server, expected: str) -> None:
    def is_killed_amid_a_request() -> bool:
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(lambda: slow.client().completions.create(**ASKED).choices[0].text)
            eventually(lambda: slow.outstanding() or asking.done())
            was_running = killed_while_it_runs(slow)
            assert asking.result(150) == expected
            return was_running

    assert any(is_killed_amid_a_request() for _ in range(TRIES)), "else it was answered before"


def killed_while_it_runs(server: Server) -> bool:
    """Whether the engine had a request, and was killed."""
    with stopped(engine := server.engine_pid()):
        if server.outstanding():
            os.kill(engine, signal.SIGKILL)
            return True
    return False


def test_a_job_beside_the_server_shares_its_engine(
    slow: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": "a", "max_tokens": 200}] * 8)
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(slow.runtime))

    def look() -> Status:
        eventually(lambda: slow.outstanding() >= 8 or "run" in kinds_of_jobs(slow.status()), "the job asks")
        assert slow.client().completions.create(**ASKED).choices
        return slow.status()

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        flags = ["--output", f"{tmp_path}/out", "--backend", "fake", "--chat", "never", "--quiet"]
        assert dispatch(["run", "--input", str(rows), *flags]) == 0
        status = looking.result()
    assert [len(model.pids) for model in status.models] == [1]
    assert "serve" in kinds_of_jobs(status)


def kinds_of_jobs(status: Status) -> set[str]:
    """The first words of the names of jobs that have answers: run, serve."""
    return {each.job.replace(",", " ").split()[0] for each in status.jobs}


def test_a_model_that_does_not_exist_ends_the_server(tmp_path: Path) -> None:
    with running(tmp_path / "rt", "--model", str(tmp_path / "absent")) as server:
        assert server.ended() == 2
    assert server.lines[-1].startswith(f"millrace: --model {tmp_path / 'absent'}")


def test_a_taken_port_is_named(slow: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = httpx.get(f"{slow.url}/health")
        assert answer.status_code == 200
        with (
            pytest.raises(AssertionError, match=rf"--port {port}: .* in use"),
            running(slow.runtime, "--port", str(port)),
        ):
            pass
