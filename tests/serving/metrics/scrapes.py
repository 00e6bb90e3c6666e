"""Metrics as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.status import EngineStats, JobStatus, ModelStatus, ProcessStatus
from millrace.model_manager.wire.timings import Timings
from millrace.serving.http.observers import Observed
from millrace.serving.metrics.machine import MachineMetrics
from millrace.serving.metrics.requests import RequestCollector

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
    preemptions=2,
    rss_mb=1.5,
    batch=2.5,
    blocks_held=1.0,
)
STATUS = Status(
    pid=1,
    uptime=60.0,
    models=[ModelStatus("tiny-1", "tiny", "ready", [2, 3], 1, 5, 8, None, STATS)],
    jobs=[JobStatus("run to out, pid 7", 10, 1, 50, 20, 70, {"ModelError": 1})],
    processes=[ProcessStatus(2**22 + 1, "manager"), ProcessStatus(2, "engine", "tiny"), ProcessStatus(3, "engine")],
)


def answer(generated: int, first: float = 0.0, last: float = 0.0) -> Output:
    """An output with so many tokens, the first and the last at these times."""
    return Output("a", [7] * generated, FinishReason.LENGTH, Timings(0.5, first, last), 2)


def every_metric() -> Iterator[Metric]:
    """Each metric with a value."""
    yield from machine_families()
    yield from request_families()


def machine_families() -> Iterator[Metric]:
    """The metrics of a machine with a little work."""
    return MachineMetrics(lambda: STATUS).collect()


def request_families() -> Iterator[Metric]:
    """The metrics of a server that has answered one request."""
    requests = RequestCollector(lambda: ("tiny", "tiny-1"))
    request = Observed("/v1/completions", status=200, generated_tokens=3, outputs=(answer(3),))
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


def scraped(url: str) -> Scrape:
    """What an address says now."""
    answered = httpx.get(url, timeout=60)
    assert answered.status_code == 200
    assert answered.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(answered.text)
