"""The dead letters of each job by the classes of their errors, from one look at the machine to the next.

The manager knows failed requests alone. A running job knows its rows too that were never sent, and says so until it
ends; what was seen of it is kept while the manager knows the job.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from millrace.model_manager.wire.job_progress import JobProgress
from millrace.model_manager.wire.status import JobStatus


class DeadLetters:
    """Scrapes may look on several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, Mapping[str, int]] = {}
        self._own: set[str] = set()
        """Jobs that have counted their rows themselves: the manager counts requests, and a row may be several."""

    def look(self, known: Iterable[JobStatus], running: Iterable[JobProgress]) -> dict[str, Mapping[str, int]]:
        """Counts by job and class. `known`: the manager's jobs; `running`: what jobs say themselves."""
        with self._lock:
            counts: dict[str, Mapping[str, int]] = {}
            for progress in running:
                if progress.counted_here:
                    self._own.add(progress.job)
                    counts[progress.job] = _most(self._told.get(progress.job, {}), progress.failures)
            for job in known:
                if job.job not in counts:
                    new = {} if job.job in self._own else job.failures
                    counts[job.job] = _most(self._told.get(job.job, {}), new)
            self._told = counts
            self._own &= counts.keys()
        return counts


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {error: max(one.get(error, 0), other.get(error, 0)) for error in dict.fromkeys([*one, *other])}
