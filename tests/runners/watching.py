"""Watches the runtime folder while a job runs, and waits until it is empty."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from millrace.model_manager.client.status import read_status
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.messages import Status
from tests.servers.kafka import until

WITHIN = 240.0
"""Seconds, on a machine that may be very busy."""
_POLL = 0.1


def status_of(runtime: Path) -> Status | None:
    """What the manager says, if there is one and it answers."""
    with contextlib.suppress(MillraceError):
        return read_status(runtime)
    return None


@dataclass
class Seen:
    """Process ids by role, over the time that was watched."""

    managers: set[int] = field(default_factory=set)
    engines: set[int] = field(default_factory=set)
    clients: set[int] = field(default_factory=set)

    def look(self, runtime: Path) -> None:
        """Take in what is there now."""
        roles = {"manager": self.managers, "engine": self.engines, "client": self.clients}
        status = status_of(runtime)
        for process in status.processes if status else ():
            roles[process.role].add(process.pid)


@contextlib.contextmanager
def watched(runtime: Path) -> Iterator[Seen]:
    """What is seen while the block runs."""
    seen, over = Seen(), threading.Event()

    def look() -> None:
        while not over.wait(_POLL):
            seen.look(runtime)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def workers_and_engines(runtime: Path) -> list[str]:
    """Commands of this suite's processes that belong to a job: SDK workers, manager, engines."""
    marks = ("sdk_worker", "model_manager.")
    return [line for line in _commands_in(runtime) if any(mark in line for mark in marks)]


def nothing_is_left(runtime: Path) -> None:
    """Wait until no process of a job runs, and the runtime folder is gone."""
    until(lambda: not runtime.exists() and not workers_and_engines(runtime), "the job's processes end")


def _commands_in(runtime: Path) -> Iterator[str]:
    for process in psutil.process_iter(["environ", "cmdline"]):
        if (process.info["environ"] or {}).get("MILLRACE_RUNTIME_DIR") == str(runtime):
            yield f"{process.pid} {' '.join(process.info['cmdline'] or [])}"
