"""What the manager says of a job, polled by a thread while the job runs.

A new manager or engine counts from 0; this module adds its counts to the earlier ones.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from millrace.model_manager.client.status import ReadStatus
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import JobStatus

from ..pages.sketches import Sample

Clock = Callable[[], float]


@contextmanager
def beside(run: Callable[[threading.Event], None], name: str, *, ends_within: float | None = None) -> Iterator[None]:
    """Call `run` on a thread of that name, with an event that is set at the block's end; waits for the thread, so many
    seconds if that is given.
    """
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,), daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(ends_within)


class Continued:
    """A row of counters that only grow; one that is lower than before comes from a new process. Whoever knows of a new
    process says so, as its counters may be higher by the next look.
    """

    def __init__(self, start: tuple[int, ...] = ()) -> None:
        """`start`: counts that are not ours, from before."""
        self._counted = start
        self._sum = [-count for count in start]

    def add(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """The latest counts; returns what all processes have counted together since the start."""
        if any(now < before for now, before in zip(counts, self._counted, strict=False)):
            self.begin_again()
        self._counted = counts
        self._sum = self._sum or [0] * len(counts)
        return tuple(total + count for total, count in zip(self._sum, counts, strict=True))

    def begin_again(self) -> None:
        """The next counts come from a new process, which began at 0."""
        self._sum = [total + before for total, before in zip(self._sum, self._counted, strict=True)]
        self._counted = (0,) * len(self._counted)

    def point(self, sample: Sample) -> Sample:
        """The same for a point in time."""
        return Sample(sample.at, *self.add((sample.done, sample.tokens)))


def counted_since(read: ReadStatus, before: JobStatus | None) -> ReadStatus:
    """A reader that subtracts a job's counts `before`, which an earlier attempt at the job had reached."""
    if before is None:
        return read

    def read_since() -> Status | None:
        status = read()
        if status is None:
            return None
        return msgspec.structs.replace(status, jobs=[_since(each, before) for each in status.jobs])

    return read_since


def _since(now: JobStatus, before: JobStatus) -> JobStatus:
    """Counts lower than before are a new manager's, which began at 0, and stay (see Continued)."""
    if now.job != before.job or now.finished < before.finished or now.failed < before.failed:
        return now
    names = ("finished", "failed", "prompt_tokens", "cached_tokens", "generated_tokens")
    counts = {name: getattr(now, name) - getattr(before, name) for name in names}
    failures = Counter(now.failures)
    failures.subtract(before.failures)
    return msgspec.structs.replace(now, **counts, failures=dict(+failures))


def job_status(status: Status | None, job: str) -> JobStatus | None:
    """The counts of one job."""
    return next((each for each in status.jobs if each.job == job), None) if status else None
