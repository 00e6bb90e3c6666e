"""Whose request goes to an engine next, where several jobs wait for one model. Knows jobs and tokens, no client.

The next request is of the job that has had the fewest tokens for its weight: virtual counters of tokens (Y. Sheng et
al., Fairness in Serving Large Language Models, OSDI 2024), with weights. A request counts with the most tokens that it
may take when an engine gets it, and with those that it took when the engine has ended it. A job that had no request
gets nothing for that time: its counter rises to the lowest of the others.

While two jobs have requests waiting, what they have had, divided by their weights, differs by no more than the tokens
of what engines hold. Any room in an engine is filled as long as any job has a request.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from ..wire.tally import Tally
from .entry import Entry


class FairShares:
    """The jobs of one model that have unfinished requests, and the tokens that each has had."""

    def __init__(self) -> None:
        self._requests: Tally[str] = Tally()
        """How many unfinished requests each job has."""
        self._weights: dict[str, float] = {}
        self._counters: dict[str, float] = {}
        """Tokens divided by the weight; also of jobs without a request that are ahead of the others."""

    @property
    def jobs(self) -> dict[str, float]:
        """The weights of the jobs that have unfinished requests."""
        return {job: self._weights[job] for job in self._requests}

    def add(self, job: str, weight: float) -> None:
        """A request of the job has come. The job has this weight from now on."""
        if job not in self._requests:
            least = self._least(default=0.0)
            self._counters[job] = max(least, self._counters.get(job, least))
        self._weights[job] = weight
        self._requests[job] += 1

    def remove(self, job: str) -> None:
        """A request of the job is finished."""
        self._requests[job] -= 1
        if job not in self._requests:
            self._forget()

    def charge(self, job: str, tokens: float) -> None:
        """Count tokens for a job that has requests; negative ones were counted before and not used."""
        self._counters[job] += tokens / self._weights[job]

    def in_turn(self, entries: Iterable[Entry]) -> list[Entry]:
        """The requests in the order in which engines are to get them; those of one job stay in theirs."""
        if len(self._requests) < 2:
            return list(entries)
        lines: dict[str, deque[Entry]] = {}
        for entry in entries:
            lines.setdefault(entry.request.job, deque()).append(entry)
        turns = [(self._counters[job], place, job) for place, job in enumerate(lines)]
        heapify(turns)
        ordered: list[Entry] = []
        while turns:
            counter, place, job = turns[0]
            ordered.append(entry := lines[job].popleft())
            if lines[job]:
                heapreplace(turns, (counter + entry.most_tokens / self._weights[job], place, job))
            else:
                heappop(turns)
        return ordered

    def _least(self, default: float) -> float:
        return min((self._counters[job] for job in self._requests), default=default)

    def _forget(self) -> None:
        """Forget jobs without a request, but not how far one is ahead of those that have some."""
        least = self._least(default=math.inf)
        for job in [job for job in self._counters if job not in self._requests and self._counters[job] <= least]:
            del self._counters[job], self._weights[job]

    def check_integrity(self, entries: Iterable[Entry]) -> None:
        """Raise AssertionError if these are not the requests that it knows of (tests)."""
        assert self._requests == Tally(entry.request.job for entry in entries)
        assert self._counters.keys() == self._weights.keys() >= self._requests.keys()
