"""The processes of whole jobs, and what they left, as tests of kills and stops look at them."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import psutil

from millrace.model_manager.client.status import read_status
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.messages import Status
from tests.waiting import eventually


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


def clients_of(runtime: Path) -> list[int]:
    status = status_of(runtime)
    return [process.pid for process in status.processes if process.role == "client"] if status else []


def processes_in(runtime: Path) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in processes_of(runtime)]


def process_role(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return "engine" if "millrace.model_manager.engine.process" in process.cmdline() else "other"
    return "gone"


def engines_of(runtime: Path) -> set[int]:
    """Pids of the inference processes."""
    return {process.pid for process in processes_in(runtime) if process_role(process) == "engine"}
