"""A compilation that takes too long runs on alone. Few do at a time, and waits for them go by processor time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from millrace.model_manager.grammars.compilations import Compilations
from millrace.model_manager.wire.errors import InvalidRequest

LARGE = 2**15


class Job:
    """One that lasts until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = 0

    def __call__(self) -> str:
        self.begun += 1
        assert self.let_go.wait(60)
        return "done"


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    job.let_go.set()


def key(name: int, size: int = LARGE) -> bytes:
    return bytes([name]) * size


def test_few_of_what_takes_too_long_run_on(job: Job) -> None:
    compilations = Compilations(longest=0.0)
    for name in (1, 2):
        with pytest.raises(InvalidRequest, match="takes one that compiles within 0 seconds of processor time"):
            compilations.result(key(name), job)
    with pytest.raises(InvalidRequest, match="takes one of at most 16384 bytes while 2 others are being compiled"):
        compilations.result(key(3), job)
    with pytest.raises(InvalidRequest, match="takes one that compiles within"):  # a small one is begun
        compilations.result(key(4, 10), job)
    with pytest.raises(InvalidRequest, match="takes one that compiles within"):  # one that runs is not begun again
        compilations.result(key(1), job)
    _wait_until_begun(job, 3)
    for name in range(5, 10):
        with pytest.raises(InvalidRequest):
            compilations.result(key(name, 10), job)
    with pytest.raises(InvalidRequest, match="while 8 others"):
        compilations.result(key(10, 10), job)
    assert len(compilations._running) == 8


def test_once_they_end_others_are_begun(job: Job) -> None:
    compilations = Compilations(longest=0.0)
    for name in (1, 2):
        with pytest.raises(InvalidRequest):
            compilations.result(key(name), job)
    running = [each.future for each in compilations._running.values()]
    job.let_go.set()
    assert [future.result(60) for future in running] == ["done", "done"]
    compilations._longest = 60.0
    assert compilations.result(key(3), lambda: "another") == "another"


def test_time_that_a_thread_does_not_compute_in_does_not_count(job: Job) -> None:
    compilations = Compilations(longest=0.05)
    threading.Timer(0.3, job.let_go.set).start()
    assert compilations.result(key(1), job) == "done"


def test_what_it_raises_is_raised() -> None:
    def fails() -> str:
        raise KeyError("a panic")

    compilations = Compilations()
    with pytest.raises(KeyError):
        compilations.result(key(1), fails)
    assert compilations.result(key(1), lambda: "again") == "again"


def _wait_until_begun(job: Job, count: int) -> None:
    while job.begun < count:
        threading.Event().wait(0.001)
