"""Watches the runtime folder while a job runs, and waits until it is empty."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from tests.runtime_folders import processes_of, status_of
from tests.servers.kafka import until
from tests.waiting import timed

WITHIN = 240.0
"""Seconds, on a machine that may be very busy."""
_POLL = 0.25


@dataclass
class Seen:
    """Process ids by role, over the time that was watched."""

    managers: set[int] = field(default_factory=set)
    engines: set[int] = field(default_factory=set)
    workers: set[int] = field(default_factory=set)
    """Processes of Beam's SDK, whether rows came to them or not."""

    def look(self, runtime: Path) -> None:
        """Take in what is there now."""
        roles = {"manager": self.managers, "engine": self.engines}
        status = status_of(runtime)
        for process in status.processes if status else ():
            if process.role in roles:
                roles[process.role].add(process.pid)
        self.workers.update(each.pid for each in processes_of(runtime) if _is_worker(each))


def _is_worker(process: psutil.Process) -> bool:
    return any("sdk_worker" in word for word in process.info["cmdline"] or [])


@contextlib.contextmanager
def watched(runtime: Path) -> Iterator[Seen]:
    """What is seen while the block runs."""
    seen = Seen()
    with repeatedly(lambda: seen.look(runtime)):
        yield seen


@contextlib.contextmanager
def repeatedly(look: Callable[[], None], every: float = _POLL) -> Iterator[None]:
    """Look while the block runs, with so many seconds between two looks."""
    over = threading.Event()

    def go_on() -> None:
        pause = every
        while not over.wait(pause):
            pause = max(every, timed(look)[1])

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def workers_and_engines(runtime: Path, marks: tuple[str, ...] = ("sdk_worker", "model_manager.")) -> list[str]:
    """Commands of this suite's processes that belong to a job: SDK workers, manager, engines."""
    lines = (f"{each.pid} {' '.join(each.info['cmdline'] or [])}" for each in processes_of(runtime))
    return [line for line in lines if any(mark in line for mark in marks)]


def nothing_is_left(runtime: Path) -> None:
    """Wait until no process of a job runs, and the runtime folder is gone."""
    until(lambda: not runtime.exists() and not workers_and_engines(runtime), "the job's processes end")


def no_manager_is_left(runtime: Path) -> None:
    """Wait until no manager and no engine runs, and the runtime folder is gone; one SDK worker may be left."""
    until(lambda: not runtime.exists() and not workers_and_engines(runtime, ("model_manager.",)), "the manager ends")
    until(lambda: len(workers_and_engines(runtime, ("sdk_worker",))) <= 1, "the workers end")
