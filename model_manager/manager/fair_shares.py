"""Whose request goes to an engine next, where several jobs wait for one model. Knows jobs and tokens, no client.

The next request comes from the job that has had the fewest tokens for its weight: virtual counters of tokens (Y. Sheng
et al., Fairness in Serving Large Language Models, OSDI 2024), with weights. A request counts with the most tokens that
it may take when an engine gets it, and with the tokens that it took when the engine has ended it. A job without waiting
requests gains nothing in that time: with its next request its counter rises to the lowest of the jobs that wait, or, if
none does, to the counter of the request that was handed over last.

While two jobs have requests waiting, what they get, divided by their weights, differs by no more than 2 H / w: H is the
most tokens that the requests in engines may take, and w is the smaller weight. Any room in an engine is filled as long
as any job has a request.
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
        self._waiting: Tally[str] = Tally()
        """How many of these no engine has."""
        self._weights: dict[str, float] = {}
        self._counters: dict[str, float] = {}
        """Tokens divided by the weight; also of jobs without a request that are ahead of the others."""
        self._reached = 0.0
        """The counter of the job whose request was handed over last, as it was before."""

    @property
    def jobs(self) -> dict[str, float]:
        """The weights of the jobs that have unfinished requests."""
        return {job: self._weights[job] for job in self._requests}

    def add(self, job: str, weight: float) -> None:
        """A request of the job has come, and waits. The job has this weight from now on: how far it is ahead of the
        others is divided by the new weight instead of the old one.
        """
        if self._weights.get(job, weight) != weight:
            least = self._least(without=job)
            self._counters[job] = least + (self._counters[job] - least) * self._weights[job] / weight
        self._weights[job] = weight
        self._requests[job] += 1
        self._wait(job)

    def hand_over(self, job: str, tokens: float) -> None:
        """An engine gets a waiting request of the job, which may take so many tokens."""
        self._reached = self._counters[job]
        self._counters[job] += tokens / self._weights[job]
        self._waiting[job] -= 1

    def take_back(self, job: str, unused: float) -> None:
        """A request that an engine had waits again. So many of the tokens that it was handed over with do not count."""
        self._refund(job, unused)
        self._wait(job)

    def finish(self, job: str, unused: float) -> None:
        """An engine has ended a request; `unused`: see `take_back`."""
        self._refund(job, unused)
        self._remove(job)

    def drop(self, job: str) -> None:
        """A waiting request is over."""
        self._waiting[job] -= 1
        self._remove(job)

    def _wait(self, job: str) -> None:
        if job not in self._waiting:
            least = self._least(without=job)
            self._counters[job] = max(least, self._counters.get(job, least))
        self._waiting[job] += 1

    def _refund(self, job: str, tokens: float) -> None:
        self._counters[job] -= tokens / self._weights[job]

    def _remove(self, job: str) -> None:
        self._requests[job] -= 1
        if job not in self._requests:
            self._forget()

    def in_turn(self, entries: Iterable[Entry]) -> list[Entry]:
        """The requests in the order in which engines are to get them; those of one job stay in theirs."""
        if len(self._waiting) < 2:
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

    def _least(self, without: str | None = None) -> float:
        """The lowest counter of the other jobs that wait; where none does, how far the last request was."""
        waiting = (self._counters[job] for job in self._waiting if job != without)
        return min(waiting, default=self._reached)

    def _forget(self) -> None:
        """Forget jobs without a request, but not how far one is ahead of those that have some."""
        least = self._least() if self._requests else math.inf
        for job in [job for job in self._counters if job not in self._requests and self._counters[job] <= least]:
            del self._counters[job], self._weights[job]

    def check_integrity(self, entries: Iterable[Entry]) -> None:
        """Raise AssertionError if these are not the requests that it knows of (tests)."""
        known = list(entries)
        assert self._requests == Tally(entry.request.job for entry in known)
        assert self._waiting == Tally(entry.request.job for entry in known if entry.engine is None)
        assert self._counters.keys() == self._weights.keys() >= self._requests.keys()
