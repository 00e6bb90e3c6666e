"""Compilations, each in its own thread.

A compilation cannot be interrupted, so one that takes too long runs on while nobody waits. Few may do that at a time,
and their results are kept. Knows keys, sizes and times; not what is compiled.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from ..wire.errors import InvalidRequest
from .grammar import Grammar

LONGEST = 10.0
"""Seconds of processor time that a caller waits; a busy machine does not shorten it."""
_SMALL = 2**14
"""Constraints of at most so many bytes are kept short by llguidance's own limits."""
_MOST_OVERDUE, _MOST_OVERDUE_OF_SMALL = 2, 8
"""How many overdue compilations may run when another one starts."""


class Compilations:
    """The running compilations; any thread may call this."""

    def __init__(self, longest: float = LONGEST) -> None:
        self._longest = longest
        self._running: dict[bytes, _Compilation] = {}
        self._lock = threading.Lock()

    def result(self, key: bytes, job: Callable[[], Grammar | str]) -> Grammar | str:
        """The result of the job, or of the running job with the same key.

        Raises InvalidRequest if it takes too long, or if too many overdue compilations run.
        """
        with self._lock:
            running = self._running.get(key)
            if running is None:
                self._check_begun(len(key))
                running = self._running[key] = _Compilation(job, functools.partial(self._ended, key))
        if not running.is_overdue and running.ends_within(self._longest):
            return running.future.result()
        running.is_overdue = True
        raise InvalidRequest(f"takes one that compiles within {self._longest:.0f} seconds of processor time")

    def _check_begun(self, size: int) -> None:
        overdue = sum(each.is_overdue for each in self._running.values())
        if overdue >= (_MOST_OVERDUE if size > _SMALL else _MOST_OVERDUE_OF_SMALL):
            raise InvalidRequest(
                f"takes one of at most {_SMALL} bytes while {overdue} others are being compiled that take longer than "
                f"{self._longest:.0f} seconds, got {size}; a later request may succeed"
            )

    def _ended(self, key: bytes) -> None:
        with self._lock:
            del self._running[key]


class _Compilation:
    """One compilation and its thread."""

    def __init__(self, job: Callable[[], Grammar | str], ended: Callable[[], None]) -> None:
        self.future: Future[Grammar | str] = Future()
        self.is_overdue = False
        self._clock: Callable[[], float] = time.monotonic
        self._begun = threading.Event()
        threading.Thread(target=self._run, args=(job, ended), name="grammar", daemon=True).start()

    def ends_within(self, seconds: float) -> bool:
        """Wait until the job ends or has taken that many seconds of processor time; True if it ended."""
        self._begun.wait()
        ended = threading.Event()
        self.future.add_done_callback(lambda _: ended.set())
        left = seconds
        while left > 0 and not ended.wait(max(left, 0.01)):
            try:
                left = seconds - (self._clock() - self._began)
            except OSError:  # the thread is gone, and its clock with it
                break
        return self.future.done()

    def _run(self, job: Callable[[], Grammar | str], ended: Callable[[], None]) -> None:
        self._clock = _clock_of_this_thread()
        self._began = self._clock()
        self._begun.set()
        try:
            result = job()
        except BaseException as error:  # llguidance's panics are no Exceptions
            ended()
            self.future.set_exception(error)
        else:
            ended()
            self.future.set_result(result)


def _clock_of_this_thread() -> Callable[[], float]:
    """A clock of the calling thread's processor time that any thread may read; wall-clock time where the system has
    none.
    """
    if sys.platform in ("darwin", "win32"):
        return time.monotonic
    return functools.partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))
