"""Counts of each job's finished and failed requests. A request counts once, however many clients wait for it."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from ..wire.request import Output, Request
from ..wire.status import JobStatus

_MOST_JOBS = 256


class JobCounts:
    """Counts by job. Beyond _MOST_JOBS, the job whose last result is the longest ago is forgotten."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, JobStatus] = OrderedDict()

    def finished(self, request: Request, output: Output) -> None:
        """Count an output of the request's job. A prompt counts once, however many answers it has; of a score each
        continuation is computed with its prompt, and counts.
        """
        first = request.is_first
        prompted = first or request.task == "score"
        count = self._touch(request.job)
        self._jobs[request.job] = msgspec.structs.replace(
            count,
            finished=count.finished + first,
            prompt_tokens=count.prompt_tokens + output.prompt_tokens * prompted,
            cached_tokens=count.cached_tokens + output.cached_tokens * prompted,
            generated_tokens=count.generated_tokens + output.num_generated,
        )

    def failed(self, job: str, error: str) -> None:
        """A request of the job failed, by an error of that class."""
        count = self._touch(job)
        failures = count.failures | {error: count.failures.get(error, 0) + 1}
        self._jobs[job] = msgspec.structs.replace(count, failed=count.failed + 1, failures=failures)

    def weighs(self, job: str, weight: float) -> None:
        """The job sends requests, and has this weight."""
        count = self._jobs.get(job)
        if count is None or count.weight != weight:
            self._jobs[job] = msgspec.structs.replace(self._touch(job), weight=weight)

    def _touch(self, job: str) -> JobStatus:
        count = self._jobs.setdefault(job, JobStatus(job=job))
        self._jobs.move_to_end(job)
        if len(self._jobs) > _MOST_JOBS:
            self._jobs.popitem(last=False)
        return count

    def status(self) -> list[JobStatus]:
        """All counts."""
        return list(self._jobs.values())
