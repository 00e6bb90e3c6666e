"""The processes of whole jobs, and what they left, as tests of kills and stops look at them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.json_lines import rows_of
from tests.runtime_folders import processes_of, status_of
from tests.waiting import eventually

_ENGINE = "millrace.model_manager.engine.process"


def all_at_once(runtime: Path, jobs: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until the jobs are clients at one time.

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
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def in_full_swing(runtime: Path, jobs: int = 1) -> dict[str, int]:
    """Wait until so many jobs have finished some of their requests, few of all; the pids of manager and engine."""

    def some_finished() -> bool:
        status = status_of(runtime)
        return status is not None and sum(counted.finished >= 10 for counted in status.jobs) >= jobs

    eventually(some_finished)
    status = status_of(runtime)
    assert status is not None
    return {process.role: process.pid for process in status.processes}


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
