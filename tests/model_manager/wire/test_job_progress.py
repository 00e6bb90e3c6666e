"""Progress files of jobs in the runtime folder: readable by their user alone, whole, and gone with their job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from millrace.model_manager.wire.job_progress import JobFile, JobProgress, born, process_space, running_jobs, spans
from millrace.model_manager.wire.runtime import RuntimeDir
from millrace.model_manager.wire.timings import Timings

JOB = JobProgress(
    job="run to out/c, pid 1",
    command="run",
    pid=os.getpid(),
    born=born(os.getpid()),
    started=1.0,
    model="tiny",
    input="a.jsonl",
    output="out/c",
    total=10,
)


def written(folder: Path, **changes: object) -> Path:
    """A file as another process would leave it."""
    job = msgspec.structs.replace(JOB, **changes)
    path = folder / f"job-{process_space()}-{job.pid}.json"
    path.write_bytes(msgspec.json.encode(job))
    return path


def test_a_job_is_read_as_it_was_written_and_the_last_word_counts(tmp_path: Path) -> None:
    file = JobFile(tmp_path)
    file.write(JOB)
    file.write(msgspec.structs.replace(JOB, done=3))
    assert running_jobs(tmp_path) == [msgspec.structs.replace(JOB, done=3)]
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


def test_at_its_end_nothing_of_it_is_left(tmp_path: Path) -> None:
    (tmp_path / "manager.lock").touch()
    file = JobFile(tmp_path)
    file.write(JOB)
    file.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["manager.lock"]


def test_files_of_dead_processes_are_swept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    path = written(tmp_path, pid=dead.pid)
    path.with_suffix(".partial").touch()
    assert running_jobs(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_not_reaped_is_dead(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as zombie:
        path = written(tmp_path, pid=zombie.pid, born=born(zombie.pid))
        assert len(running_jobs(tmp_path)) == 1
        zombie.kill()
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        assert running_jobs(tmp_path) == []
        assert not path.exists()


def test_a_job_of_another_container_is_one_while_its_file_is_young(tmp_path: Path) -> None:
    own, path = written(tmp_path), tmp_path / f"job-7-{JOB.pid}.json"
    there = msgspec.structs.replace(JOB, space="7", born=1, started=2.0)
    path.write_bytes(msgspec.json.encode(there))
    assert running_jobs(tmp_path) == [JOB, there]
    os.utime(path, (0, time.time() - 61))
    assert running_jobs(tmp_path) == [JOB]
    assert [*tmp_path.iterdir()] == [own]


def test_another_process_with_the_same_id_is_not_the_job(tmp_path: Path) -> None:
    written(tmp_path, born=JOB.born - 1)
    assert running_jobs(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"job": "a"}', b"\xff"])
def test_a_file_that_is_no_progress_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"job-{os.getpid()}.json").write_bytes(content)
    assert running_jobs(tmp_path) == []


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    (tmp_path / f"job-{process_space()}-{os.getpid()}.partial").symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        JobFile(tmp_path).write(JOB)
    assert target.read_text() == "kept"


def test_a_manager_that_ends_leaves_running_jobs_and_no_dead_ones(tmp_path: Path) -> None:
    folder = RuntimeDir(tmp_path / "rt")
    folder.prepare()
    written(folder.path, pid=2**22 - 1)
    JobFile(folder.path).write(JOB)
    held = folder.try_lock()
    assert held is not None
    folder.remove(held)
    os.close(held)
    assert [path.name for path in folder.path.iterdir()] == [f"job-{process_space()}-{os.getpid()}.json"]
    JobFile(folder.path).remove()
    folder.leave()
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("timings", "tokens", "seconds"),
    [
        (Timings(1.0, 3.0, 7.0), 5, (1.0, 2.0, 4.0)),
        (Timings(1.0, 0.0, 7.0), 0, (1.0, 6.0, 0.0)),
        (Timings(0.0, 0.0, 0.0), 0, (0.0, 0.0, 0.0)),
    ],
)
def test_spans_follow_one_another(timings: Timings, tokens: int, seconds: tuple[float, ...]) -> None:
    assert spans(timings, tokens) == seconds


def test_a_pipe_in_its_place_makes_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"job-{os.getpid()}.json")
    program = (
        "from pathlib import Path\n"
        f"from {running_jobs.__module__} import running_jobs\n"
        f"assert not running_jobs(Path({str(tmp_path)!r}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
