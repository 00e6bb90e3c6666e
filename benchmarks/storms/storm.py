"""Runs a job while its processes are killed and stopped; a launcher that was killed is started again.

Knows what a job has written, and no runner.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil  # type: ignore[import-untyped, unused-ignore]

from .blows import Blow
from .job import Job

_POLL = 0.05
_SEARCH = 20.0
"""Seconds to wait for a process of a role, which may be starting again."""
_CONTINUED_WITHIN = 10.0
_GONE_WITHIN = 10.0


@dataclass
class Course:
    """What happened in one run."""

    seconds: float = 0.0
    launchers: int = 1
    statuses: list[int] = field(default_factory=list)
    """How launchers ended that nobody had killed; the last one is the job's."""
    struck: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    missed: int = 0
    """Blows that no process of their role was there for, or that came after the job's end."""
    stalls: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The longest time without a new row on disk, in seconds, between a blow and the next one, by kind."""


class Storm:
    """One job under blows."""

    def __init__(self, job: Job, seed: int, revive: Callable[[str], None] | None = None) -> None:
        """`revive`: called after the role of a server was killed, to start it again as a cluster's supervisor would."""
        self._job = job
        self._rnd = random.Random(seed)
        self._revive = revive or (lambda _role: None)
        self._course = Course()
        self._timers: list[threading.Timer] = []
        self._rows = 0
        self._stalled = ("", 0.0)
        """The latest blow's kind, and the longest time without a row since."""
        self._row_at = 0.0
        self._began = 0.0
        self._ended_job = False

    def run(self, blows: Sequence[Blow], within: float) -> Course:
        """Run the job to its end; raises TimeoutError if there is none within so many seconds."""
        self._began = began = time.monotonic()
        self._job.start()
        for blow in blows:
            if not self._until(lambda after=blow.after_rows: self._rows >= after, began + within):  # type: ignore[misc]
                self._course.missed += 1
            else:
                self._strike(blow)
        self._until(lambda: False, began + within)
        self._note_stall("")
        for timer in self._timers:
            timer.join(_CONTINUED_WITHIN)
        self._course.seconds = round(time.monotonic() - began, 1)
        return self._course

    def _until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Whether the condition came true before the job's end. A launcher that has ended badly is followed by one that
        resumes.
        """
        while True:
            status = self._job.status()
            self._look()
            if status is not None and not self._goes_on(status):
                return False
            if status is None and condition():
                return True
            if time.monotonic() > deadline:
                self._job.kill()
                raise TimeoutError(f"the job did not end: {self._rows} rows\n{self._job.said()[-3000:]}")
            time.sleep(_POLL)

    def _goes_on(self, status: int) -> bool:
        """After the end of a launcher: start the next one, unless the job is done, or failed alike three times."""
        if not self._ended_job:
            self._course.statuses.append(status)
            if status == 0 or self._course.statuses[-3:] == [status] * 3:
                return False
            print(f"  the job ended with status {status}: {self._job.said().strip().splitlines()[-1:]}", flush=True)
        self._ended_job = False
        self._course.launchers += 1
        self._job.start("--resume")
        return True

    def _look(self) -> None:
        rows, now = self._job.written(), time.monotonic()
        if rows > self._rows:
            self._stalled = (self._stalled[0], max(self._stalled[1], now - self._row_at))
            self._rows, self._row_at = rows, now

    def _note_stall(self, next_kind: str) -> None:
        kind, longest = self._stalled
        if kind:
            self._course.stalls[kind].append(round(longest, 2))
        self._stalled, self._row_at = (next_kind, 0.0), time.monotonic()

    def _strike(self, blow: Blow) -> None:
        victim = self._victim(blow.role)
        if victim is None:
            self._course.missed += 1
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            self._deal(blow, victim)
            self._course.struck[blow.kind] += 1
            self._note_stall(blow.kind)
            pause = f" for {blow.pause:g} s" if blow.pause else ""
            since = time.monotonic() - self._began
            print(f"  {since:>6.1f} s, {self._rows:>7,} rows: {blow.kind}{pause} (process {victim.pid})", flush=True)

    def _deal(self, blow: Blow, victim: psutil.Process) -> None:
        if blow.pause:
            victim.send_signal(signal.SIGSTOP)
            timer = threading.Timer(blow.pause, _continued, [victim])
            timer.daemon = True
            timer.start()
            self._timers.append(timer)
            return
        self._ended_job = blow.role in ("launcher", "job manager")
        victim.kill()
        if blow.role == "launcher":
            self._job.kill()
        _wait_for_end(victim)
        self._revive(blow.role)

    def _victim(self, role: str) -> psutil.Process | None:
        deadline = time.monotonic() + _SEARCH
        while time.monotonic() < deadline and self._job.status() is None:
            if found := self._job.victims(role):
                return self._rnd.choice(found)
            time.sleep(_POLL)
        return None


def _wait_for_end(process: psutil.Process) -> None:
    """Who starts a server again would take it for one that runs."""
    deadline = time.monotonic() + _GONE_WITHIN
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(_POLL)


def _continued(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)
