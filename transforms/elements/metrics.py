"""Beam metrics, in the namespace `millrace`. Distributions are of whole milliseconds."""

from __future__ import annotations

from time import time as wall_clock

from apache_beam.metrics import Metrics

from .completions import Completion
from .task_results import Result

NAMESPACE = "millrace"
ACTIVE = "active_ms"
"""Since the graph was built: when requests were sent, and when they ended. The model's loading is before the first."""


class RequestMetrics:
    """Updated on the bundle's own thread, where Beam takes them."""

    def __init__(self, built_at: float) -> None:
        """`built_at`: when the graph was built, by the wall clock, which workers share."""
        self._built_at = built_at
        self._active = Metrics.distribution(NAMESPACE, ACTIVE)
        self._requests = Metrics.counter(NAMESPACE, "requests")
        self._failures = Metrics.counter(NAMESPACE, "failures")
        self._prompt_tokens = Metrics.counter(NAMESPACE, "prompt_tokens")
        self._cached_tokens = Metrics.counter(NAMESPACE, "cached_tokens")
        self._generated_tokens = Metrics.counter(NAMESPACE, "generated_tokens")
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
