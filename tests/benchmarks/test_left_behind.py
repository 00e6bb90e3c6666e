"""What the chaos benchmark finds that a job has left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.storms.job import Job
from tests.job_commands import started
from tests.waiting import eventually

_HOLDS = """
import mmap, os, socket, subprocess, sys
shared, how = sys.argv[1:]
listening = socket.create_server(("127.0.0.1", 0))
with open(shared, "w+b") as file:
    file.truncate(4096)
    if how == "open":
        kept = os.dup(file.fileno())
    else:
        kept = mmap.mmap(file.fileno(), 4096)
child = subprocess.Popen(["cat"], pass_fds=[listening.fileno()], env={})  # which is not known as the job's
print(listening.getsockname()[1], flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A file's name in the shared memory of this machine."""
    path = Path("/dev/shm", f"millrace-test-{uuid.uuid4().hex}")
    yield path
    path.unlink(missing_ok=True)


@contextmanager
def holding(shared: Path, how: str, environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has a file of shared memory and a port, which its child has too. They end with their stdin."""
    command = [sys.executable, "-c", _HOLDS, str(shared), how]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_port_and_shared_memory_that_a_job_leaves_are_found(tmp_path: Path, shared: Path, how: str) -> None:
    job = Job(tmp_path, [])
    with ExitStack() as stack:
        job.process, port = stack.enter_context(holding(shared, how, job.surroundings))
        assert job.status() is None
        job.kill()
        assert job.left_behind() == [f"port {port}", str(shared)], "the port is its child's now"
    eventually(lambda: job.left_behind() == [str(shared)])
    shared.unlink()
    assert job.left_behind() == []


def test_a_process_that_is_left_is_found_with_its_port(tmp_path: Path, shared: Path) -> None:
    job = Job(tmp_path, [])
    with holding(shared, "open", job.surroundings) as (process, port):
        first, *others = job.left_behind()
        assert re.match(rf"process {process.pid} ", first)
        assert others == [f"port {port}", str(shared)]


def test_what_others_hold_is_not_the_jobs(tmp_path: Path, shared: Path) -> None:
    job = Job(tmp_path, [])
    environment = {**os.environ, "MILLRACE_RUNTIME_DIR": str(tmp_path / "other")}
    with holding(shared, "mapped", environment):
        assert job.left_behind() == []
    assert job.left_behind() == []
