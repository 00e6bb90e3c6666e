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
        self._seen: dict[str, Mapping[str, int]] = {}

    def look(self, known: Iterable[JobStatus], running: Iterable[JobProgress]) -> dict[str, Mapping[str, int]]:
        """Counts by job and class. `known`: the manager's jobs; `running`: what jobs say themselves."""
        with self._lock:
            counts: dict[str, Mapping[str, int]] = {}
            for job in known:
                counts[job.job] = _most(self._seen.get(job.job, {}), job.failures)
            for progress in running:
                if progress.counted_here:
                    self._seen[progress.job] = _most(self._seen.get(progress.job, {}), progress.failures)
                    counts[progress.job] = self._seen[progress.job]
            self._seen = {job: seen for job, seen in self._seen.items() if job in counts}
        return counts


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {error: max(one.get(error, 0), other.get(error, 0)) for error in dict.fromkeys([*one, *other])}
