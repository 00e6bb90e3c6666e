"""Beam metrics, in the namespace `millrace`. Distributions are of whole milliseconds.

Where workers are threads of this process, as those of a stream on Prism, their counts can be had here too: `tallied`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import time as wall_clock

from apache_beam.metrics import Metrics

from .completions import Completion
from .task_results import Result

NAMESPACE = "millrace"
ACTIVE = "active_ms"
"""Since the graph was built: when requests were sent, and when they ended. The model's loading is before the first."""


_tallies: list[Counter[str]] = []
_lock = threading.Lock()


@contextmanager
def tallied() -> Iterator[Counter[str]]:
    """What is counted in this process while the block runs, by the counters' names, and as soon as it is counted.

    A runner tells of a bundle's counts when the bundle is over, and Prism of some never.
    """
    tally = Counter[str]()
    _tallies.append(tally)
    try:
        yield tally
    finally:
        _tallies[:] = [each for each in _tallies if each is not tally]


class Count:
    """A counter of Beam's, which is tallied too."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counter = Metrics.counter(NAMESPACE, name)

    def inc(self, by: int = 1) -> None:
        """On the bundle's own thread, where Beam takes metrics."""
        self._counter.inc(by)
        with _lock:
            for tally in _tallies:
                tally[self._name] += by


class RequestMetrics:
    """Updated on the bundle's own thread, where Beam takes them."""

    def __init__(self, built_at: float) -> None:
        """`built_at`: when the graph was built, by the wall clock, which workers share."""
        self._built_at = built_at
        self._active = Metrics.distribution(NAMESPACE, ACTIVE)
        self._requests = Count("requests")
        self._failures = Count("failures")
        self._prompt_tokens = Count("prompt_tokens")
        self._cached_tokens = Count("cached_tokens")
        self._generated_tokens = Count("generated_tokens")
        self._ttft = Metrics.distribution(NAMESPACE, "ttft_ms")
        self._latency = Metrics.distribution(NAMESPACE, "latency_ms")
        self._queue_time = Metrics.distribution(NAMESPACE, "queue_time_ms")

    def active(self) -> None:
        """A request is sent, or its end is seen."""
        self._active.update(_ms(wall_clock() - self._built_at))

    def failed(self) -> None:
        """A request without a completion."""
        self._requests.inc()
        self._failures.inc()

    def finished(self, result: Completion | Result) -> None:
        """A request and what it took."""
        self._requests.inc()
        self._prompt_tokens.inc(result.usage.prompt_tokens)
        self._cached_tokens.inc(result.usage.cached_tokens)
        self._generated_tokens.inc(result.usage.completion_tokens)
        self._latency.update(_ms(result.latency))
        if result.timings is not None:
            self._ttft.update(_ms(result.timings.first_token))
            self._queue_time.update(_ms(result.timings.queued))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
