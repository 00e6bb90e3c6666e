"""Whole jobs, as a user starts them, while the processes under them are killed or stopped.

Whatever dies, the output is complete and has no row twice, and at the end no process, socket or file is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from millrace.model_manager.client.status import read_status
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.messages import Status
from tests.job_commands import job_command
from tests.waiting import eventually

PROMPTS = 400
WITHIN = 120.0

pytestmark = pytest.mark.slow


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """More prompts than the engine holds at once, each of some steps that take their time."""
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{n}", "prompt": f"question {n}"}) + "\n" for n in range(PROMPTS)))
    return path


@contextlib.contextmanager
def job(prompts: Path, output: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`millrace run` in a process of its own."""
    quick = ["--hang_timeout=2", "--linger=0.5", "--orphan_grace=0.5", "--backend=fake", "--max_tokens=20"]
    command = job_command("run", prompts, output / "c")
    with subprocess.Popen([*command, *quick, *flags], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def status_of(runtime: Path) -> Status | None:
    with contextlib.suppress(MillraceError):
        return read_status(runtime)
    return None


def in_full_swing(runtime: Path) -> dict[str, int]:
    """Wait until some requests are finished and most are not; the pids of manager and engine."""

    def some_finished() -> bool:
        status = status_of(runtime)
        return status is not None and any(counted.finished >= 10 for counted in status.jobs)

    eventually(some_finished)
    status = read_status(runtime)
    assert status is not None
    return {process.role: process.pid for process in status.processes}


def complete(process: subprocess.Popen[str], output: Path) -> None:
    """The job ends well, with each prompt's completion once."""
    _, shown = process.communicate(timeout=WITHIN)
    assert process.returncode == 0, shown
    assert ids(output) == sorted(f"p{n}" for n in range(PROMPTS))
    assert not list(output.glob("*dead_letters*"))


def ids(output: Path) -> list[str]:
    lines = [line for path in output.glob("c-*.jsonl") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["id"] for line in lines)


def nothing_is_left(runtime: Path) -> None:
    eventually(lambda: not runtime.exists() and not processes_of(runtime))


def processes_of(runtime: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["environ"]):
        mine = (process.info["environ"] or {}).get("MILLRACE_RUNTIME_DIR") == str(runtime)
        if mine and process.pid != os.getpid():
            found.append(process.pid)
    return found


@pytest.mark.parametrize("role", ["engine", "manager"])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_job_outlives_its_engine_and_its_manager(
    runtime: Path, prompts: Path, tmp_path: Path, role: str, blow: signal.Signals
) -> None:
    with job(prompts, tmp_path / "out") as process:
        pids = in_full_swing(runtime)
        os.kill(pids[role], blow)
        complete(process, tmp_path / "out")
    assert not psutil.pid_exists(pids[role])
    nothing_is_left(runtime)


def test_a_job_that_is_killed_leaves_nothing_and_is_resumed(runtime: Path, prompts: Path, tmp_path: Path) -> None:
    with job(prompts, tmp_path / "out") as process:
        in_full_swing(runtime)
        process.kill()
    nothing_is_left(runtime)
    with job(prompts, tmp_path / "out", "--resume") as process:
        complete(process, tmp_path / "out")
    nothing_is_left(runtime)


def test_three_jobs_at_once_share_one_engine(runtime: Path, prompts: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(job(prompts, tmp_path / name)) for name in ("a", "b", "c")]
        eventually(lambda: len(clients_of(runtime)) == len(jobs))
        engines = {process.pid for process in processes_in(runtime) if process_role(process) == "engine"}
        assert len(engines) == 1
        for process, name in zip(jobs, ("a", "b", "c"), strict=True):
            complete(process, tmp_path / name)
    nothing_is_left(runtime)


def clients_of(runtime: Path) -> list[int]:
    status = status_of(runtime)
    return [process.pid for process in status.processes if process.role == "client"] if status else []


def processes_in(runtime: Path) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in processes_of(runtime)]


def process_role(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return "engine" if "millrace.model_manager.engine.process" in process.cmdline() else "other"
    return "gone"
