"""Metrics made from a manager's status."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import pytest

from millrace.model_manager.wire.errors import ManagerUnavailable
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import EndedModel, EngineTotals, ProcessStatus
from millrace.serving.metrics.machine_metrics import MachineMetrics
from tests.serving.metrics.scrapes import STATUS, Scrape, counted, told

MODEL = {"model_name": "tiny", "engine": "tiny-1"}


def scrape(read: Callable[[], Status | None], queued: Callable[[], dict[str, int]] = dict) -> Scrape:
    return told(MachineMetrics(read, queued))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_requests_running", 2.5),
        ("num_requests_waiting", 4),
        ("num_requests_outstanding", 8),
        ("kv_cache_usage_perc", 0.25),
        ("prompt_tokens_total", 50),
        ("prefix_cache_queries_total", 50),
        ("prefix_cache_hits_total", 20),
        ("generation_tokens_total", 70),
        ("num_preemptions_total", 2),
        ("spec_decode_num_draft_tokens_total", 9),
        ("spec_decode_num_accepted_tokens_total", 6),
        ("engine_restarts_total", 5),
        ("model_ready", 1),
        ("credits", 80),
        ("credits_in_use", 9),
        ("grammar_compilations_total", 7),
        ("grammar_compilation_seconds_total", 0.5),
        ("grammar_cache_hits_total", 11),
    ],
)
def test_a_model_has_its_numbers_under_its_name_and_key(name: str, value: float) -> None:
    assert scrape(lambda: STATUS).total(name, **MODEL) == value


def test_a_server_shows_its_own_requests_in_place_of_what_the_manager_saw_of_servers() -> None:
    seen_there = {"job": counted(1, 2, 3).counts(), "server_answers": counted(4, 5).counts()}
    model = msgspec.structs.replace(STATUS.models[0], requests=seen_there)
    status = msgspec.structs.replace(STATUS, models=[model])

    def by_source(seen: Scrape, name: str = "request_generation_tokens_sum") -> list[float]:
        return [seen.total(name, source=source, **MODEL) for source in ("job", "server_answers", "server")]

    own = {("tiny", "tiny-1"): counted(7).counts()}
    assert by_source(told(MachineMetrics(lambda: status))) == [6, 9, 0]
    assert by_source(told(MachineMetrics(lambda: status, answered=lambda: own))) == [6, 0, 7]
    assert by_source(told(MachineMetrics(lambda: None, answered=lambda: own))) == [0, 0, 7], "it keeps them itself"
    assert by_source(told(MachineMetrics(lambda: status, answered=dict))) == [6, 0, 0]


def test_a_model_that_nobody_uses_keeps_its_counters_and_has_no_other_numbers() -> None:
    ended = EndedModel("tiny-1", "tiny", 3, EngineTotals(generated_tokens=70), {"job": counted(1, 2).counts()})
    seen = scrape(lambda: msgspec.structs.replace(STATUS, models=[], ended=[ended]))
    assert seen.total("generation_tokens_total", **MODEL) == 70
    assert seen.total("engine_restarts_total", **MODEL) == 3
    assert seen.total("request_generation_tokens_sum", source="job", **MODEL) == 3
    assert not [each for each in seen.samples if each.name.startswith("millrace:model_") or "num_requests" in each.name]


def test_a_job_has_its_rows_and_tokens() -> None:
    job = {"job_name": "run to out, pid 7"}
    seen = scrape(lambda: STATUS)
    assert (seen.total("job_rows_done_total", **job), seen.total("job_rows_failed_total", **job)) == (10, 1)
    assert seen.total("job_generation_tokens_total", **job) == 70


def test_memory_is_told_by_kind_and_a_process_that_has_ended_has_none() -> None:
    seen = scrape(
        lambda: msgspec.structs.replace(STATUS, processes=[*STATUS.processes, ProcessStatus(os.getpid(), "client")])
    )
    assert seen.total("resident_memory_bytes", kind="engine") == 1.5 * 2**20
    assert seen.total("resident_memory_bytes", kind="manager") == 0
    assert seen.total("resident_memory_bytes", kind="client") > 2**20


def test_an_engine_without_a_cache_uses_none_of_it() -> None:
    model = msgspec.structs.replace(
        STATUS.models[0], stats=msgspec.structs.replace(STATUS.models[0].stats, blocks_total=0)
    )
    assert scrape(lambda: msgspec.structs.replace(STATUS, models=[model])).total("kv_cache_usage_perc") == 0


def test_what_runs_is_the_average_of_steps_and_of_an_engine_without_one_the_moment() -> None:
    def stats(**changes: float) -> Status:
        changed = msgspec.structs.replace(STATUS.models[0].stats, **changes)
        return msgspec.structs.replace(STATUS, models=[msgspec.structs.replace(STATUS.models[0], stats=changed)])

    between = scrape(lambda: stats(running=0, blocks_used=0))
    assert (between.total("num_requests_running"), between.total("kv_cache_usage_perc")) == (2.5, 0.25)
    assert scrape(lambda: stats(batch=0.0)).total("num_requests_running") == 3


def test_requests_in_the_servers_own_queue_wait_too() -> None:
    seen = scrape(lambda: STATUS, lambda: {"tiny-1": 50, "other": 7})
    assert seen.total("num_requests_waiting", **MODEL) == seen.total("num_requests_waiting") == 54


def test_models_of_one_name_are_told_apart() -> None:
    other = msgspec.structs.replace(STATUS.models[0], key="tiny-2")
    seen = scrape(lambda: msgspec.structs.replace(STATUS, models=[*STATUS.models, other]))
    assert seen.total("num_requests_running", engine="tiny-2") == 2.5
    assert seen.total("num_requests_running", model_name="tiny") == 5


def test_labels_hold_any_name() -> None:
    name = 'run to "a\\b",\npid 1'
    jobs = [msgspec.structs.replace(STATUS.jobs[0], job=name)]
    assert scrape(lambda: msgspec.structs.replace(STATUS, jobs=jobs)).total("job_rows_done_total", job_name=name) == 10


def hangs() -> Status:
    raise ManagerUnavailable("the manager does not answer")


def is_forbidden() -> Status:
    raise PermissionError("the socket is another user's")


@pytest.mark.parametrize("read", [lambda: None, hangs, is_forbidden])
def test_without_a_manager_that_answers_up_is_0_and_nothing_else_has_a_value(read: Callable[[], Status | None]) -> None:
    samples = scrape(read).samples
    assert [(sample.name, sample.value) for sample in samples] == [("millrace:up", 0.0)]
