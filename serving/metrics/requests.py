"""Metrics of this server's own requests, counted as each ends. Its process keeps them, so they never go backwards."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millrace.model_manager.wire.job_progress import spans
from millrace.model_manager.wire.request import Output

from ..http.observers import Observed
from .histogram import LabelledHistogram
from .machine import MODEL_LABELS, PREFIX
from .request_times import before_receipt

_SECONDS = tuple(float(f"{step}e{power}") for power in range(-4, 3) for step in ("1", "2.5", "5"))
_TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
_TIMES = {
    "time_to_first_token_seconds": "From a request's arrival to its first token, of requests that generate.",
    "inter_token_latency_seconds": "Between two tokens of an answer: its mean, counted once for each token but the "
    "first.",
    "request_time_per_output_token_seconds": "Between two tokens of an answer: its mean, counted once an answer.",
    "e2e_request_latency_seconds": "From a request's arrival to the end of its answer.",
    "request_queue_time_seconds": "From a request's arrival to the first step of its prompt, counted once an answer.",
    "request_prefill_time_seconds": "From the first step of a prompt to the first token, counted once an answer.",
    "request_decode_time_seconds": "From the first token of an answer to its last, counted once an answer.",
    "request_inference_time_seconds": "From the first step of a prompt to the last token, counted once an answer.",
}
_SIZES = {
    "request_prompt_tokens": "Tokens of a request's prompts.",
    "request_generation_tokens": "Tokens of a request's answers.",
}


class RequestCollector(Collector):
    """An observer (observers.py) that counts. Requests end in the event loop, and scrapes read on other threads."""

    def __init__(self, model: Callable[[], tuple[str, str]]) -> None:
        """`model` gives name and key of the loaded model."""
        self._model = model
        self._lock = threading.Lock()
        self._running = 0
        self._ended = Counter[tuple[str, str, str]]()
        self._answers = Counter[tuple[str, str, str]]()
        self._histograms = {
            name: LabelledHistogram(PREFIX + name, meaning, MODEL_LABELS, bounds)
            for names, bounds in ((_TIMES, _SECONDS), (_SIZES, _TOKENS))
            for name, meaning in names.items()
        }

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
            if request.outputs:
                self._answered(request, self._model())

    def _answered(self, request: Observed, model: tuple[str, str]) -> None:
        """Count a request that the model has answered whole."""
        seen = self._histograms
        seen["e2e_request_latency_seconds"].observe(model, request.seconds)
        seen["request_prompt_tokens"].observe(model, request.prompt_tokens)
        seen["request_generation_tokens"].observe(model, request.generated_tokens)
        if request.generated_tokens:
            seen["time_to_first_token_seconds"].observe(model, _time_to_first_token(request))
        waited = before_receipt(request)
        for output in request.outputs:
            self._output(output, model, waited)

    def _output(self, output: Output, model: tuple[str, str], waited: float) -> None:
        """`waited`: seconds before the manager's receipt."""
        seen, gaps = self._histograms, output.num_generated - 1
        self._answers[(*model, output.finish_reason.value)] += 1
        queued, prefill, decode = spans(output.timings, output.num_generated)
        seen["request_queue_time_seconds"].observe(model, waited + queued)
        seen["request_prefill_time_seconds"].observe(model, prefill)
        seen["request_decode_time_seconds"].observe(model, decode)
        seen["request_inference_time_seconds"].observe(model, prefill + decode)
        if gaps > 0:
            gap = _generating(output) / gaps
            seen["inter_token_latency_seconds"].observe(model, gap, gaps)
            seen["request_time_per_output_token_seconds"].observe(model, gap)

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are at one moment."""
        with self._lock:
            families = [*(each.family() for each in self._histograms.values()), *self._counts()]
        yield from families

    def _counts(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            f"{PREFIX}request_success",
            "Answers of the model, by what ended them: stop, length or deadline.",
            labels=(*MODEL_LABELS, "finished_reason"),
        )
        ended = CounterMetricFamily(
            f"{PREFIX}http_requests",
            "Requests to this server that ended, by path, status (499: the client hung up) and the error's code.",
            labels=("route", "status", "error"),
        )
        for family, counts in ((answers, self._answers), (ended, self._ended)):
            for labels, count in counts.items():
                family.add_metric(labels, count)
        yield from (answers, ended)
        meaning = "Requests to this server that are not answered."
        yield GaugeMetricFamily(f"{PREFIX}http_requests_running", meaning, value=self._running)


def _time_to_first_token(request: Observed) -> float:
    """Seconds to the first token: as seen in a stream, else by the engine's time from the first token to the last."""
    if request.first_token is not None:
        return request.first_token - request.since
    return max(0.0, request.seconds - max(map(_generating, request.outputs)))


def _generating(output: Output) -> float:
    """Seconds from the first token to the last."""
    return output.timings.finished - output.timings.first_token
