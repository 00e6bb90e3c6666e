"""Beam metrics, in the namespace `millrace`. Distributions count whole milliseconds.

Where workers are threads of this process, as in a stream on Prism, their counts can be had here too: `tallied`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import time as wall_clock

from apache_beam.metrics import Metrics

from .completions import Completion
from .task_results import Result

NAMESPACE = "millrace"
ACTIVE = "active_ms"
METRICS = {
    "prompts": "Rows read as prompts.",
    "unreadable_rows": "Rows read that are no prompt; each is a dead letter.",
    "requests": "Requests that ended, failed ones included.",
    "failures": "Requests that failed; each is a dead letter.",
    "failure:ERROR": "Rows that became dead letters, by the error's class.",
    "prompt_tokens": "Tokens of the prompts of finished requests.",
    "cached_tokens": "Prompt tokens whose KV cache was reused.",
    "generated_tokens": "Tokens that the model generated.",
    "recomputed_tokens": "Tokens that engines computed again, after preemptions and deaths of engines and managers.",
    "model_changes": "Changes of the model while the job ran, counted in each worker process.",
    "failed_model_change:ERROR": "Changes of the model that failed, by the error's class.",
    "near_miss:COLUMN:PARAMETER": "Rows with a column whose name resembles a sampling parameter's.",
    "repeated_id:ID": "Rows with the id of another row of the job.",
    "answered_id:ID": "Rows of a resumed job with the id of a row that was answered before, and another prompt.",
    "unmet_setting:JSON": "Settings of engine or manager that the job asked for and does not get.",
    "ttft_ms": "From the manager's receipt of a request to its first token.",
    "latency_ms": "From a request's submission to its result, as the worker sees them.",
    "queue_time_ms": "From the manager's receipt of a request to its first step.",
    ACTIVE: "From the building of the graph to each moment a request was sent or ended. The first follows the model's "
    "loading.",
}
"""Every metric, and what it counts. Names that end in `_ms` are distributions, all others are counters."""


_tallies: list[Counter[str]] = []
_lock = threading.Lock()


@contextmanager
def tallied() -> Iterator[Counter[str]]:
    """What is counted in this process while the block runs, by the counters' names, and as soon as it is counted.

    A runner tells of a bundle's counts when the bundle is over, and Prism of some never.
    """
    tally = Counter[str]()
    with _lock:
        _tallies.append(tally)
    try:
        yield tally
    finally:
        with _lock:
            _tallies[:] = [each for each in _tallies if each is not tally]


_FAILURE = "failure:"


class Failures:
    """Counts dead letters by the classes of their errors."""

    def __init__(self) -> None:
        self._counts: dict[str, Count] = {}

    def count(self, error: str) -> None:
        """`error`: the class."""
        if error not in self._counts:
            self._counts[error] = Count(_FAILURE + error)
        self._counts[error].inc()


def failures_in(counts: Mapping[str, int]) -> dict[str, int]:
    """Dead letters by the classes of their errors, from counters by name."""
    return {name.removeprefix(_FAILURE): rows for name, rows in counts.items() if name.startswith(_FAILURE)}


class Count:
    """A counter of Beam's, which is tallied too."""

    def __init__(self, name: str) -> None:
        assert name in METRICS or name.startswith(_FAILURE)
        self._name = name
        self._counter = Metrics.counter(NAMESPACE, name)

    def inc(self, by: int = 1) -> None:
        """Add to the counter. Call this on the bundle's own thread, where Beam takes metrics."""
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
        self._classes = Failures()
        self._prompt_tokens = Count("prompt_tokens")
        self._cached_tokens = Count("cached_tokens")
        self._generated_tokens = Count("generated_tokens")
        self._recomputed_tokens = Count("recomputed_tokens")
        self._ttft = Metrics.distribution(NAMESPACE, "ttft_ms")
        self._latency = Metrics.distribution(NAMESPACE, "latency_ms")
        self._queue_time = Metrics.distribution(NAMESPACE, "queue_time_ms")

    def active(self) -> None:
        """A request is sent, or its end is seen."""
        self._active.update(_ms(wall_clock() - self._built_at))

    def failed(self, error: str) -> None:
        """A request without a completion, and the error's class."""
        self._requests.inc()
        self._failures.inc()
        self._classes.count(error)

    def finished(self, result: Completion | Result, recomputed: int) -> None:
        """A request and what it took, with the tokens that were computed again."""
        self._recomputed_tokens.inc(recomputed)
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
