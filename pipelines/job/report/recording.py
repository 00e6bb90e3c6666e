"""Records what the manager says while a job runs, for the report: progress over time, and what the engines did.

It looks when progress looks: `read` stands in the place of a reader of the manager's status. A job that shows no
progress has a thread of its own for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from millrace.model_manager.client.status import ReadStatus
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import EndedModel, EngineTotals, ModelStatus

from ...pages.sketches import Sample, Series
from ..polling import Clock, Continued, beside

_EVERY = 0.5
"""Seconds between two looks."""
_UNCERTAIN = 1.0
"""Seconds by which a manager's uptime may lag behind the time between two looks: another machine's clock."""


class EngineCounts(NamedTuple):
    """What the engines of a model did for as long as the job ran."""

    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class EngineRecord:
    """The engines of one model."""

    def __init__(self, start: ModelStatus | EndedModel | None) -> None:
        """`start`: what they had done before the job."""
        self._counts = Continued(_counts(start.stats) if start else EngineCounts())
        self._restarts = Continued((start.restarts if start else 0,))
        self.counts = EngineCounts()
        self.restarts = 0
        """Times that an engine was started again."""
        self.most_blocks = (0, 0)
        """Most blocks of KV cache in use, of how many."""
        self.most_memory = 0.0
        """MB."""

    def add(self, status: ModelStatus) -> None:
        """What the manager says of it now."""
        self.counts = EngineCounts(*self._counts.add(_counts(status.stats)))
        (self.restarts,) = self._restarts.add((status.restarts,))
        self.most_blocks = max(self.most_blocks, (status.stats.blocks_used, status.stats.blocks_total))
        self.most_memory = max(self.most_memory, status.stats.rss_mb)

    def begin_again(self) -> None:
        """A new manager counts from now on."""
        self._counts.begin_again()
        self._restarts.begin_again()


class Recorder:
    """Looks at the manager for one job. Looks from several threads take turns."""

    def __init__(
        self, job: str, models: Callable[[str], bool], read: ReadStatus, clock: Clock = time.monotonic
    ) -> None:
        """`models`: whether a model, by its name, is one of the job's."""
        self.series = Series()
        self.engines: dict[str, EngineRecord] = {}
        """Records of engines by the models' keys."""
        self._before: dict[str, ModelStatus | EndedModel] = {}
        """What each model had counted before the job: a running one at the first look, an ended one whenever it is seen
        before the job opens it again.
        """
        self.is_shared = False
        """Another job's requests ran beside."""
        self._job = job
        self._is_ours = models
        self._read = read
        self._clock = clock
        self._counts = Continued()
        self._others: dict[str, int] | None = None
        self._last: Status | None = None
        self._last_read = 0.0
        """When `_last` was there."""
        self._lock = threading.Lock()

    def read(self) -> Status | None:
        """Read the manager's status, and note it."""
        with self._lock:  # so that no status is noted after a newer one, which would look like another manager's
            asked = self._clock()
            status = self._read()
            self._note(status, asked)
        return status

    def _note(self, status: Status | None, asked: float) -> None:
        is_first = self._others is None
        self._compare(status, asked)
        jobs = {each.job: each.finished + each.failed for each in status.jobs} if status else {}
        self._others = jobs if self._others is None else self._others
        if status is None:
            return
        self._before |= {each.key: each for each in status.ended if each.key not in self.engines}
        if is_first:
            self._before |= {each.key: each for each in status.models}
        for job in status.jobs:
            if job.job == self._job:
                point = Sample(self._clock(), job.finished + job.failed, job.generated_tokens)
                self.series.add(self._counts.point(point))
            elif jobs[job.job] > self._others.get(job.job, 0):
                self.is_shared = True
        ours = [model for model in status.models if self._is_ours(model.model)]
        if self._job not in jobs and any(model.outstanding for model in ours):
            self.series.add(self._counts.point(Sample(self._clock(), 0, 0)))  # the first requests run
        for model in ours:
            if model.key not in self.engines:
                self.engines[model.key] = EngineRecord(self._before.get(model.key))
            self.engines[model.key].add(model)

    def _compare(self, status: Status | None, asked: float) -> None:
        """Whether the manager has taken another's place. A manager in a container may have the pid of the one before
        it, but not its uptime and the time since.
        """
        if status is None:
            return
        if self._last is not None:
            since = max(0.0, asked - self._last_read - _UNCERTAIN)
            if status.pid != self._last.pid or status.uptime < self._last.uptime + since:
                self._begin_again()
        self._last, self._last_read = status, self._clock()

    def _begin_again(self) -> None:
        self._before, self._others = {}, {}
        self._counts.begin_again()
        for engine in self.engines.values():
            engine.begin_again()


@contextlib.contextmanager
def looking(recorder: Recorder) -> Iterator[None]:
    """While the block runs, a thread looks, for a job that shows no progress."""

    def look(stop: threading.Event) -> None:
        while not stop.wait(_EVERY):
            recorder.read()

    with beside(look, "millrace-report"):
        yield


def _counts(stats: EngineTotals) -> EngineCounts:
    return EngineCounts(*(getattr(stats, name) for name in EngineCounts._fields))
