"""Whole jobs, as a user starts them, over each engine and server, while it is killed, stopped and shared.

Rows have parameters of their own, and some ask what the engine lacks: job_rows.py says what must come of each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.config import cache_folder
from tests.job_commands import job_command, started
from tests.model_manager.backends.job_rows import ROWS, expect_answers, write_rows
from tests.model_manager.backends.job_subjects import (
    ENDPOINT,
    ENGINES,
    SERVERS,
    Outsider,
    Subject,
    outsiders,
    subject_named,
)
from tests.model_manager.backends.real_servers import ray_folder, short_folder
from tests.model_manager.backends.scenarios import PATIENCE
from tests.pipelines.job.job_processes import all_at_once, engines_of, nothing_is_left
from tests.runtime_folders import status_of
from tests.waiting import eventually

T = TypeVar("T")

__all__ = ["ray_folder", "short_folder"]

pytestmark = pytest.mark.engines


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_folder: Path) -> Iterator[Path]:
    """A runtime folder and a folder for temporary files of the jobs' own."""
    folder = tmp_path / "rt"
    scratch = ray_folder / "scratch"  # vLLM has sockets there, so its path must be short
    scratch.mkdir()
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("TMPDIR", str(scratch))
    yield folder
    stop_models(folder)


@pytest.fixture(scope="module")
def subject(
    request: pytest.FixtureRequest,
    engine_python: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Subject:
    """The engine or server of that name."""
    return subject_named(request.param, tmp_path_factory.mktemp("models"), engine_python)


@pytest.fixture
def outside(subject: Subject, tmp_path: Path) -> Iterator[list[Outsider]]:
    """The servers that somebody else runs, where the subject is such ones."""
    with outsiders(subject.options, tmp_path) as found:
        yield found


@contextlib.contextmanager
def job(folder: Path, rows: int, subject: Subject, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`millrace run` in a process of its own, on so many rows."""
    folder.mkdir(exist_ok=True)
    source = folder / "rows.jsonl"
    write_rows(source, rows, subject.takes)
    command = [*job_command("run", source, folder / "c"), *flags, *subject.flags]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process


def complete(process: subprocess.Popen[str], folder: Path, rows: int, subject: Subject) -> None:
    """The job ends well, with one answer or dead letter for each row."""
    summary, shown = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, shown
    assert f"dead letters: {len(subject.takes.refused)} rows " in summary
    expect_answers(folder, rows, subject.takes, subject.seen)


def nothing_at_all_is_left(runtime: Path) -> None:
    """No process, no socket or lock of theirs, and no file in the temporary folder."""
    nothing_is_left(runtime)
    scratch = Path(os.environ["TMPDIR"])
    assert [path for path in scratch.rglob("*") if not path.is_dir() or path.name.startswith("torchinductor")] == []
    conversions = cache_folder() / "conversions"  # where an engine of another test process may convert a model now
    eventually(lambda: not [*conversions.glob("*.unfinished")], "the end of conversions")


@contextlib.contextmanager
def stopped_once(job: subprocess.Popen[str], reached: Callable[[], T | None]) -> Iterator[T]:
    """Stops the job once `reached` returns a value, and yields that. The job does nothing in the block, nor ends."""

    def look() -> T | None:
        job.send_signal(signal.SIGSTOP)
        if (found := reached()) is None:
            job.send_signal(signal.SIGCONT)
        return found

    try:
        yield eventually(look, "the point at which the job is to be stopped")
    finally:
        job.send_signal(signal.SIGCONT)


def answering(
    subject: Subject, runtime: Path, rows: int, former: psutil.Process | None = None
) -> psutil.Process | None:
    """The process that answers, if it is not the former one, once so many rows are answered; None before."""
    found = subject.answerer(runtime)
    return found if found != former and answered(runtime) >= rows else None


def answered(runtime: Path) -> int:
    """How many rows of all jobs are answered."""
    return sum(finished(runtime))


def finished(runtime: Path) -> list[int]:
    """How many rows of each job are answered."""
    status = status_of(runtime)
    return [counted.finished for counted in status.jobs] if status else []


def manager_of(runtime: Path) -> psutil.Process | None:
    """The process that the jobs of this folder share."""
    status = status_of(runtime)
    pids = [process.pid for process in status.processes if process.role == "manager"] if status else []
    return psutil.Process(pids[0]) if pids else None


def restarts(runtime: Path) -> int:
    """How often the model's engine was started again."""
    status = status_of(runtime)
    return sum(model.restarts for model in status.models) if status else 0


@pytest.mark.parametrize("subject", [*ENGINES, *SERVERS], indirect=True)
def test_rows_have_their_own_parameters_and_outlive_a_dead_and_a_hung_engine(
    runtime: Path, tmp_path: Path, subject: Subject
) -> None:
    with job(tmp_path / "out", ROWS, subject, "--hang_timeout=5") as process:
        with stopped_once(process, lambda: answering(subject, runtime, 10)) as first:
            used = subject.files_used(runtime)
            assert used or not subject.shares
            first.kill()
            more = answered(runtime) + 1
        with stopped_once(process, lambda: answering(subject, runtime, more, former=first)) as second:
            before = restarts(runtime)
            assert before >= 1 or subject.replaces_its_listener
            used |= subject.files_used(runtime)
            second.suspend()
        with stopped_once(process, lambda: restarts(runtime) > before or None):
            pass
        complete(process, tmp_path / "out", ROWS, subject)
    assert not second.is_running()
    assert not [path for path in used if path.exists()]
    nothing_at_all_is_left(runtime)


@pytest.mark.parametrize("subject", [ENDPOINT], indirect=True)
def test_rows_have_their_own_parameters_and_outlive_a_dead_and_a_hung_server_of_somebody_elses(
    runtime: Path, tmp_path: Path, subject: Subject, outside: list[Outsider]
) -> None:
    """Its owner starts it again, the other goes on meanwhile, and the rows of a hung one come back as it dies."""
    one, other = outside
    with job(tmp_path / "out", ROWS, subject) as process:
        with stopped_once(process, lambda: answered(runtime) >= 10 or None):
            one.process.kill()
            more = answered(runtime) + 1
        with stopped_once(process, lambda: answered(runtime) >= more or None):
            one.start_again()
            other.process.suspend()
            more = answered(runtime) + subject.settings["max_num_seqs"]  # more than the hung one had answered by then
        with stopped_once(process, lambda: answered(runtime) >= more or None):
            other.process.kill()
        complete(process, tmp_path / "out", ROWS, subject)
    assert one.process.is_running(), "it is not millrace's to end"
    nothing_at_all_is_left(runtime)


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("subject", [*ENGINES, *SERVERS, ENDPOINT], indirect=True)
def test_two_jobs_share_an_engine_and_one_is_stopped_and_resumed_over_the_death_of_their_manager(
    runtime: Path, tmp_path: Path, subject: Subject
) -> None:
    patient = "--hang_timeout=60"
    with (
        job(tmp_path / "a", ROWS // 2, subject, patient) as first,
        job(tmp_path / "b", ROWS, subject, patient) as second,
    ):
        all_at_once(runtime, [first, second])
        with stopped_once(second, lambda: sum(rows >= 10 for rows in finished(runtime)) == 2 or None):
            (shared,) = engines_of(runtime)
            second.send_signal(signal.SIGINT)
        second.communicate(timeout=PATIENCE)
        assert second.returncode == 130
        complete(first, tmp_path / "a", ROWS // 2, subject)
        assert engines_of(runtime) <= {shared}
    with job(tmp_path / "b", ROWS, subject, patient, "--resume") as second:
        with stopped_once(second, lambda: manager_of(runtime) if answered(runtime) >= 10 else None) as manager:
            used = subject.files_used(runtime)
            manager.kill()
        complete(second, tmp_path / "b", ROWS, subject)
    assert not [path for path in used if path.exists()]
    nothing_at_all_is_left(runtime)
