"""When a server that starts counts as hung: real processes, and a clock of the test's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from millrace.model_manager.backends.server.signs import SignsOfLife
from tests.waiting import eventually

IDLE, BUSY = "sleep 600", "while :; do :; done"


class Started:
    """A process that has one below it, and its signs of life."""

    def __init__(self, command: str) -> None:
        self.guard = subprocess.Popen(["sh", "-c", f"sh -c '{command}' & wait"])
        self.below: psutil.Process = eventually(self._child, "a process below")
        self.now = 0.0
        self.signs = SignsOfLife(self.guard.pid, 8.0, lambda: self.now)

    def _child(self) -> psutil.Process | None:
        return next(iter(psutil.Process(self.guard.pid).children()), None)

    def missing_after(self, seconds: int, *, is_silent: bool) -> str | None:
        """What is missing at the end, where it is asked once a second."""
        found = None
        for _ in range(seconds):
            self.now += 1.0
            if self.is_busy:
                eventually(partial(self._has_used_more_than, self._used()), "processor time")
            found = self.signs.missing(is_silent=is_silent)
        return found

    is_busy = False

    def _has_used_more_than(self, before: float) -> bool:
        return self._used() > before

    def _used(self) -> float:
        times = self.below.cpu_times()
        return float(times.user + times.system)


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[Started]:
    found = Started(request.param)
    found.is_busy = request.param == BUSY
    try:
        yield found
    finally:
        for process in psutil.Process(found.guard.pid).children(recursive=True):
            process.kill()
        found.guard.wait()


@pytest.mark.parametrize("started", [IDLE], indirect=True)
def test_a_server_that_does_not_listen_may_be_idle(started: Started) -> None:
    assert started.missing_after(100, is_silent=False) is None


@pytest.mark.parametrize("started", [IDLE], indirect=True)
def test_a_server_that_answers_nothing_and_does_nothing_hangs(started: Started) -> None:
    assert started.missing_after(7, is_silent=True) is None
    assert (
        started.missing_after(5, is_silent=True)
        == "it accepted connections, answered none and computed nothing for 8 s"
    )


@pytest.mark.parametrize("started", [BUSY], indirect=True)
def test_a_server_that_answers_nothing_and_computes_does_not_hang(started: Started) -> None:
    assert started.missing_after(20, is_silent=True) is None


@pytest.mark.parametrize("started", [IDLE], indirect=True)
def test_a_server_of_which_a_process_is_stopped_hangs_until_that_goes_on(started: Started) -> None:
    os.kill(started.below.pid, signal.SIGSTOP)
    eventually(lambda: started.below.status() == psutil.STATUS_STOPPED)
    assert started.missing_after(7, is_silent=False) is None
    assert started.missing_after(5, is_silent=False) == f"its process {started.below.pid} is stopped for 8 s"
    os.kill(started.below.pid, signal.SIGCONT)
    eventually(lambda: started.below.status() != psutil.STATUS_STOPPED)
    assert started.missing_after(20, is_silent=False) is None
