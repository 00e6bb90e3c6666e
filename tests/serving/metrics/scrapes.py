"""Metrics as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.request_counts import RequestCounter
from millrace.model_manager.wire.status import EngineStats, JobStatus, ModelStatus, ProcessStatus
from millrace.model_manager.wire.timings import Timings
from millrace.serving.http.observers import Observed, ObservedAnswer
from millrace.serving.metrics.machine_metrics import PREFIX, SOURCE_LABELS, MachineMetrics
from millrace.serving.metrics.request_families import request_families
from millrace.serving.metrics.request_metrics import RequestCollector

STATS = EngineStats(
    running=3,
    waiting=4,
    blocks_used=1,
    blocks_total=4,
    prompt_tokens=50,
    cached_tokens=20,
    generated_tokens=70,
    drafted_tokens=9,
    accepted_tokens=6,
    grammars_compiled=7,
    grammar_seconds=0.5,
    grammar_hits=11,
    preemptions=2,
    rss_mb=1.5,
    batch=2.5,
    blocks_held=1.0,
)
MODEL = ModelStatus("tiny-1", "tiny", "ready", [2, 3], 1, 5, 8, None, STATS, credits_given=80, credits_used=9)
STATUS = Status(
    pid=1,
    uptime=60.0,
    models=[MODEL],
    jobs=[JobStatus("run to out, pid 7", 10, 1, 50, 20, 70, {"ModelError": 1})],
    processes=[ProcessStatus(2**22 + 1, "manager"), ProcessStatus(2, "engine", "tiny"), ProcessStatus(3, "engine")],
)


def output(generated: int, first: float = 0.0, last: float = 0.0) -> Output:
    """An output with so many tokens, the first and the last at these times after the manager's receipt."""
    return Output("a", [7] * generated, FinishReason.LENGTH, Timings(0.5, first, last), 2)


def answer(
    generated: int, first: float = 0.0, last: float = 0.0, *, ended: float = 0.0, first_token: float | None = None
) -> ObservedAnswer:
    """An answer with so many tokens; `ended` and `first_token` are when the server had it."""
    return ObservedAnswer(output(generated, first, last), ended, first_token)


def counted(*generated: int) -> RequestCounter:
    """A counter of requests with so many tokens each."""
    counter = RequestCounter()
    for tokens in generated:
        counter.request(1.0, 0.5, 2, tokens)
        counter.answer(FinishReason.LENGTH, 0.25, 0.25, 0.5, tokens - 1)
    return counter


def every_metric() -> Iterator[Metric]:
    """Each metric with a value."""
    yield from machine_families()
    yield from answered_families()
    yield from server_families()


def machine_families() -> Iterator[Metric]:
    """The metrics of a machine with a little work, without its requests' metrics."""
    return (family for family in MachineMetrics(lambda: STATUS).collect() if family.samples)


def answered_families() -> Iterator[Metric]:
    """The metrics of answered requests."""
    return request_families(PREFIX, SOURCE_LABELS, [(("tiny", "tiny-1", "job"), counted(3).counts())])


def server_families() -> Iterator[Metric]:
    """The metrics of a server that has answered one request, that it alone has."""
    requests = RequestCollector(lambda: ("tiny", "tiny-1"))
    request = Observed("/v1/completions", status=200, generated_tokens=3, answers=(answer(3),))
    requests.started(request)
    requests.finished(request)
    yield from requests.collect()


class Scrape:
    """All samples of one answer."""

    def __init__(self, text: str) -> None:
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that have these labels."""
        found = [
            each for each in self.samples if each.name == f"millrace:{name}" and labels.items() <= each.labels.items()
        ]
        return sum(each.value for each in found)


def told(collector: Collector) -> Scrape:
    """What a collector says now."""
    registry = CollectorRegistry()
    registry.register(collector)
    return Scrape(generate_latest(registry).decode())


def scraped(url: str) -> Scrape:
    """What an address says now."""
    answered = httpx.get(url, timeout=60)
    assert answered.status_code == 200
    assert answered.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(answered.text)
