"""Metrics of this server's own requests, counted as each ends. Its process keeps them, so they never go backwards."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millrace.model_manager.wire.request_counts import RequestCounter, RequestCounts

from ..http.observers import Observed
from .machine_metrics import PREFIX
from .request_times import phases_of_answer, to_first_token


class RequestCollector(Collector):
    """An observer (observers.py) that counts. Requests end in the event loop, and scrapes read on other threads."""

    def __init__(self, model: Callable[[], tuple[str, str]]) -> None:
        """`model` gives name and key of the loaded model."""
        self._model = model
        self._lock = threading.Lock()
        self._running = 0
        self._ended = Counter[tuple[str, str, str]]()
        self._answered = defaultdict[tuple[str, str], RequestCounter](RequestCounter)

    def started(self, _request: Observed) -> None:
        """See Observer."""
        with self._lock:
            self._running += 1

    def first_token(self, request: Observed) -> None:
        """See Observer; the time is counted at the request's end."""

    def finished(self, request: Observed) -> None:
        """See Observer."""
        with self._lock:
            self._running -= 1
            self._ended[request.route, str(request.status), request.error] += 1
            if request.answers:
                _count(request, self._answered[self._model()])

    def answered(self) -> dict[tuple[str, str], RequestCounts]:
        """Counts of the requests that the model has answered whole, by its name and key."""
        with self._lock:
            return {model: counter.counts() for model, counter in self._answered.items()}

    def collect(self) -> Iterator[Metric]:
        """Metrics of HTTP requests, as they are at one moment. Those that were answered are beside the ones of jobs
        (`MachineMetrics`).
        """
        ended = CounterMetricFamily(
            f"{PREFIX}http_requests",
            "Requests to this server that ended, by path, status (499: the client hung up) and the error's code.",
            labels=("route", "status", "error"),
        )
        with self._lock:
            running = self._running
            for labels, count in self._ended.items():
                ended.add_metric(labels, count)
        yield ended
        meaning = "Requests to this server that are not answered."
        yield GaugeMetricFamily(f"{PREFIX}http_requests_running", meaning, value=running)


def _count(request: Observed, counter: RequestCounter) -> None:
    counter.request(request.seconds, to_first_token(request), request.prompt_tokens, request.generated_tokens)
    for answer in request.answers:
        output = answer.output
        gaps = 0 if output.setbacks else output.num_generated - 1  # else its last engine alone measured its times
        counter.answer(output.finish_reason, *phases_of_answer(request, answer), gaps)
