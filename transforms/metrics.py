"""Beam metrics, in the namespace `millrace`. Distributions are of whole milliseconds."""

from __future__ import annotations

from apache_beam.metrics import Metrics

from transforms.client import Generation, num_generated_tokens

NAMESPACE = "millrace"


class GenerateMetrics:
    """Updated on the bundle's own thread, where Beam takes them."""

    def __init__(self) -> None:
        self._requests = Metrics.counter(NAMESPACE, "requests")
        self._failures = Metrics.counter(NAMESPACE, "failures")
        self._prompt_tokens = Metrics.counter(NAMESPACE, "prompt_tokens")
        self._cached_tokens = Metrics.counter(NAMESPACE, "cached_tokens")
        self._generated_tokens = Metrics.counter(NAMESPACE, "generated_tokens")
        self._ttft = Metrics.distribution(NAMESPACE, "ttft_ms")
        self._latency = Metrics.distribution(NAMESPACE, "latency_ms")
        self._queue_time = Metrics.distribution(NAMESPACE, "queue_time_ms")

    def failed(self) -> None:
        """A request without a completion."""
        self._requests.inc()
        self._failures.inc()

    def finished(self, generation: Generation) -> None:
        """A request and what it took."""
        self._requests.inc()
        self._prompt_tokens.inc(generation.prompt_tokens)
        self._cached_tokens.inc(generation.cached_tokens)
        self._generated_tokens.inc(num_generated_tokens(generation))
        self._ttft.update(_ms(generation.timings.first_token))
        self._queue_time.update(_ms(generation.timings.queued))
        self._latency.update(_ms(generation.latency))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
