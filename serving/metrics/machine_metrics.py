"""Metrics of this machine, made of one look at each scrape. Nothing is kept between scrapes but each job's dead
letters, which a job that has ended tells no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millrace.model_manager.client.status import ReadStatus, read_status
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.request_counts import RequestCounts
from millrace.model_manager.wire.status import EndedModel, JobStatus, ModelStatus

from .dead_letters import DeadLetters
from .request_families import request_families
from .snapshot import snapshot

PREFIX = "millrace:"
"""How every name begins; vLLM's begin with `vllm:`."""
MODEL_LABELS = ("model_name", "engine")
"""`engine` is the model's key: two models of one name may run side by side with other settings."""
JOB_LABELS = ("job_name",)
"""Prometheus has a label `job` of its own, the name of what it scrapes, and renames one of that name."""
SOURCE_LABELS = (*MODEL_LABELS, "source")
"""`source` is who sent requests, and who counted them: `server`, a server its HTTP requests; `server_answers`, the
manager what it answered to servers; `job`, the manager what it answered to all others.
"""
_Of = TypeVar("_Of")


@dataclass(frozen=True)
class _Measure(Generic[_Of]):
    """A number that a model or a job has."""

    kind: type[CounterMetricFamily] | type[GaugeMetricFamily]
    name: str
    meaning: str
    value: Callable[[_Of], float]

    def family(self, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], _Of]]) -> Metric:
        """The number of each row, under the values of its labels."""
        family = self.kind(PREFIX + self.name, self.meaning, labels=labels)
        for values, each in rows:
            family.add_metric(values, self.value(each))
        return family


def _cache_use(model: ModelStatus) -> float:
    stats = model.stats
    return (stats.blocks_held or stats.blocks_used) / stats.blocks_total if stats.blocks_total else 0.0


def _running(model: ModelStatus) -> float:
    """A moment may lie between two steps; engines that tell no average tell the moment."""
    return model.stats.batch or model.stats.running


_GAUGES_OF_MODELS: tuple[_Measure[ModelStatus], ...] = (
    _Measure(
        GaugeMetricFamily,
        "num_requests_running",
        "Requests that run at a step, on average over the last few seconds.",
        _running,
    ),
    _Measure(
        GaugeMetricFamily,
        "num_requests_waiting",
        "Requests that wait; where a server is asked, those in its own queue too.",
        lambda model: model.stats.waiting,
    ),
    _Measure(
        GaugeMetricFamily,
        "num_requests_outstanding",
        "Requests that the manager accepted and that are not answered.",
        lambda model: model.outstanding,
    ),
    _Measure(
        GaugeMetricFamily,
        "kv_cache_usage_perc",
        "Part of the KV cache in use at a step, 0 to 1, on average over the last few seconds.",
        _cache_use,
    ),
    _Measure(
        GaugeMetricFamily,
        "credits",
        "Requests that the model's clients may have outstanding, all together.",
        lambda model: model.credits_given,
    ),
    _Measure(
        GaugeMetricFamily,
        "credits_in_use",
        "Requests that the model's clients have outstanding; one that two clients wait for counts twice.",
        lambda model: model.credits_used,
    ),
    _Measure(GaugeMetricFamily, "model_ready", "1 if the model is loaded.", lambda model: model.state == "ready"),
    _Measure(GaugeMetricFamily, "model_clients", "Processes that use the model.", lambda model: model.clients),
)

_COUNTERS_OF_MODELS: tuple[_Measure[ModelStatus | EndedModel], ...] = (
    _Measure(
        CounterMetricFamily,
        "prompt_tokens",
        "Tokens of prompts, cached ones included.",
        lambda model: model.stats.prompt_tokens,
    ),
    _Measure(CounterMetricFamily, "generation_tokens", "Generated tokens.", lambda model: model.stats.generated_tokens),
    _Measure(
        CounterMetricFamily,
        "prefix_cache_queries",
        "Prompt tokens that were looked up in the KV cache.",
        lambda model: model.stats.prompt_tokens,
    ),
    _Measure(
        CounterMetricFamily,
        "prefix_cache_hits",
        "Prompt tokens whose KV cache was reused.",
        lambda model: model.stats.cached_tokens,
    ),
    _Measure(
        CounterMetricFamily,
        "num_preemptions",
        "Times that a running request was put back to wait.",
        lambda model: model.stats.preemptions,
    ),
    _Measure(
        CounterMetricFamily,
        "spec_decode_num_draft_tokens",
        "Tokens that speculative decoding drafted.",
        lambda model: model.stats.drafted_tokens,
    ),
    _Measure(
        CounterMetricFamily,
        "spec_decode_num_accepted_tokens",
        "Drafted tokens that were right.",
        lambda model: model.stats.accepted_tokens,
    ),
    _Measure(
        CounterMetricFamily,
        "grammar_compilations",
        "Constraints that were compiled, refused ones included; engines of other packages tell none.",
        lambda model: model.stats.grammars_compiled,
    ),
    _Measure(
        CounterMetricFamily,
        "grammar_compilation_seconds",
        "Seconds that these compilations took.",
        lambda model: model.stats.grammar_seconds,
    ),
    _Measure(
        CounterMetricFamily,
        "grammar_cache_hits",
        "Requests whose constraint was compiled, or on its way, for an earlier request.",
        lambda model: model.stats.grammar_hits,
    ),
    _Measure(CounterMetricFamily, "engine_steps", "Steps of the engine.", lambda model: model.stats.steps),
    _Measure(
        CounterMetricFamily,
        "engine_restarts",
        "Times that an engine was started again.",
        lambda model: model.restarts,
    ),
)

_OF_JOBS: tuple[_Measure[JobStatus], ...] = (
    _Measure(CounterMetricFamily, "job_rows_done", "Requests of the job that finished.", lambda job: job.finished),
    _Measure(CounterMetricFamily, "job_prompt_tokens", "Tokens of the job's prompts.", lambda job: job.prompt_tokens),
    _Measure(
        CounterMetricFamily,
        "job_cached_tokens",
        "Tokens of the job's prompts whose KV cache was reused.",
        lambda job: job.cached_tokens,
    ),
    _Measure(
        CounterMetricFamily,
        "job_generation_tokens",
        "Tokens generated for the job.",
        lambda job: job.generated_tokens,
    ),
)


class MachineMetrics(Collector):
    """Looks at the machine at each scrape."""

    def __init__(
        self,
        read: ReadStatus = read_status,
        queued: Callable[[], Mapping[str, int]] = dict,
        answered: Callable[[], Mapping[tuple[str, str], RequestCounts]] | None = None,
    ) -> None:
        """`queued`: requests that wait in this process, by their model's key. `answered`: this server's own requests,
        by the model's name and key. They take the place of what the manager answered to servers: each server shows its
        own.
        """
        self._read = read
        self._queued = queued
        self._answered = answered
        self._dead_letters = DeadLetters()

    def collect(self) -> Iterator[Metric]:
        """All metrics; the ones of models and jobs have no values where no manager answers."""
        seen = snapshot(self._read)
        models, jobs = (self._models(seen.status), seen.status.jobs) if seen.status else ([], [])
        counted: list[ModelStatus | EndedModel] = [*models, *(seen.status.ended if seen.status else [])]
        yield GaugeMetricFamily(f"{PREFIX}up", "1 if this machine's manager answers.", value=seen.status is not None)
        yield _uptime(seen.status)
        for gauge in _GAUGES_OF_MODELS:
            yield gauge.family(MODEL_LABELS, [((row.model, row.key), row) for row in models])
        for counter in _COUNTERS_OF_MODELS:
            yield counter.family(MODEL_LABELS, [((row.model, row.key), row) for row in counted])
        yield from request_families(PREFIX, SOURCE_LABELS, self._requests(counted))
        yield from (each.family(JOB_LABELS, [((row.job,), row) for row in jobs]) for each in _OF_JOBS)
        yield from _dead_letters(self._dead_letters.look(jobs, seen.jobs) if seen.status else {})
        yield _memory(seen.memory)

    def _requests(self, models: Iterable[ModelStatus | EndedModel]) -> Iterator[tuple[Sequence[str], RequestCounts]]:
        for model in models:
            for source, counts in model.requests.items():
                if self._answered is None or source != "server_answers":
                    yield (model.model, model.key, source), counts
        for (name, key), counts in self._answered().items() if self._answered is not None else ():
            yield (name, key, "server"), counts

    def _models(self, status: Status) -> list[ModelStatus]:
        queued = self._queued()
        return [_with_queue(model, queued.get(model.key, 0)) for model in status.models]


def _with_queue(model: ModelStatus, queued: int) -> ModelStatus:
    stats = msgspec.structs.replace(model.stats, waiting=model.stats.waiting + queued)
    return msgspec.structs.replace(model, stats=stats)


def _uptime(status: Status | None) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}manager_uptime_seconds", "Seconds since the manager started.", labels=())
    if status is not None:
        family.add_metric((), status.uptime)
    return family


def _dead_letters(by_job: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    total = CounterMetricFamily(f"{PREFIX}job_rows_failed", "Dead letters of the job.", labels=JOB_LABELS)
    meaning = "Dead letters of the job, by the class of the error."
    by_class = CounterMetricFamily(f"{PREFIX}job_dead_letters", meaning, labels=(*JOB_LABELS, "error"))
    for job, failures in by_job.items():
        total.add_metric((job,), sum(failures.values()))
        for error, count in failures.items():
            by_class.add_metric((job, error), count)
    yield from (total, by_class)


def _memory(sizes: Mapping[str, int]) -> Metric:
    meaning = "Resident memory of all processes of a kind: manager, engine or client."
    family = GaugeMetricFamily(f"{PREFIX}resident_memory_bytes", meaning, labels=("kind",))
    for kind, size in sizes.items():
        family.add_metric((kind,), size)
    return family
