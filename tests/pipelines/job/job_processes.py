"""The processes of whole jobs, and what they left, as tests of kills and stops look at them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from millrace.model_manager.client.status import stop_models
from tests.json_lines import rows_of
from tests.runtime_folders import processes_of, status_of
from tests.waiting import eventually

_TRIES = 20
_ENGINE = "millrace.model_manager.engine.process"


def all_at_once(runtime: Path, jobs: Sequence[subprocess.Popen[str]]) -> set[int]:
    """Wait until the jobs are clients at one time; the engines that they have then.

    Those that come first are stopped until the last has come: a job's start can take longer than another one's work.
    """
    pids = {process.pid for process in jobs}
    stopped = set[int]()

    def last_has_come() -> bool:
        for pid in pids & {*clients_of(runtime)} - stopped:
            os.kill(pid, signal.SIGSTOP)
            stopped.add(pid)
        return stopped == pids

    try:
        eventually(last_has_come, "all jobs are there")
        return engines_of(runtime)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def in_full_swing(runtime: Path, output: Path) -> dict[str, int]:
    """Wait until a job has answered some rows, and written some to `output`; the pids of manager and engine."""
    pids: dict[str, int] = eventually(lambda: _pids(runtime, output), "some rows are answered")
    return pids


@contextlib.contextmanager
def caught(
    start: Callable[[], AbstractContextManager[subprocess.Popen[str]]],
    runtime: Path,
    output: Path,
    rows: int,
    also: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """A job of so many rows in its middle, and the pids of manager and engine. The job and its engine are stopped, so
    that nothing is over before the test strikes: `go_on` ends that. `also`: what must be so by then, too.

    A job that was over before anybody looked is started anew, with nothing left of the first.
    """
    for _ in range(_TRIES):
        with start() as process:
            if pids := _middle(process, lambda: also() and _stopped(process, runtime, output, rows)):
                try:
                    yield process, pids
                finally:
                    go_on(process.pid, pids["engine"])
                return
            assert process.returncode == 0, process.communicate()
        stop_models(runtime)
        shutil.rmtree(output)
    raise AssertionError("each time the job was over before anybody had looked")


def go_on(*pids: int) -> None:
    """Let processes that are stopped run again, those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _pids(runtime: Path, output: Path) -> dict[str, int] | None:
    """The pids of manager and engine, once a job is in full swing: a manager has answers before they are written."""
    wrote = any(path.stat().st_size for path in output.glob("c.tmp/*/completions-*.jsonl"))
    status = status_of(runtime) if wrote else None
    if status is None or not any(counted.finished >= 10 for counted in status.jobs):
        return None
    found = {process.role: process.pid for process in status.processes}
    return found if found.keys() >= {"manager", "engine"} else None


def _middle(process: subprocess.Popen[str], stopped: Callable[[], object]) -> dict[str, int] | None:
    """The pids, once job and engine are stopped in the middle of the job; None if the job ended before that."""
    found = eventually(lambda: stopped() or process.poll() is not None)
    return found if isinstance(found, dict) else None


def _stopped(process: subprocess.Popen[str], runtime: Path, output: Path, rows: int) -> dict[str, int] | None:
    """The pids, with job and engine stopped, if they are in the middle of the job; else None, and they run."""
    pids = _pids(runtime, output)
    if pids is None:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids["engine"], signal.SIGSTOP)
        process.send_signal(signal.SIGSTOP)
        status = status_of(runtime)
        if status is not None and sum(job.finished for job in status.jobs) <= rows * 3 // 4:
            return pids
    go_on(process.pid, pids["engine"])
    return None


def ids(output: Path) -> list[str]:
    return sorted(row["id"] for row in rows_of(output, "c-*.jsonl"))


def nothing_is_left(runtime: Path) -> None:
    eventually(lambda: not runtime.exists() and not [*processes_of(runtime)])


def clients_of(runtime: Path) -> list[int]:
    status = status_of(runtime)
    return [process.pid for process in status.processes if process.role == "client"] if status else []


def engines_of(runtime: Path) -> set[int]:
    """Pids of the inference processes."""
    return {process.pid for process in processes_of(runtime) if _ENGINE in (process.info["cmdline"] or [])}
