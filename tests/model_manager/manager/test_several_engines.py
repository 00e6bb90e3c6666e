"""A model with several engines: what each gets, what the others do when one dies; every request is answered once."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from millrace.model_manager.wire.machine import cores_of_engines
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.machine import PATIENCE, Machine
from tests.model_manager.manager.router_world import SETTINGS, opened, request, world
from tests.model_manager.manager.stand_in_engine import ANSWER, answer
from tests.waiting import eventually


def test_credits_grow_with_each_engine_that_is_ready() -> None:
    made = opened(1, num_engines=3)
    limits = []
    for index in range(3):
        made.load(index)
        limits.append(made.limits[1])
    assert limits == [8, 16, 24]


def test_a_suspect_runs_alone_and_only_one_engine_waits_for_it() -> None:
    made = world(1, num_engines=3)
    made.submit(1, request("poison"))
    for _ in range(SETTINGS.max_deaths_per_request):
        index = made.holder("poison")
        made.die(index)
        made.load(index)
    made.submit(1, *(request(f"r{number}") for number in range(9)))
    kept = made.holder("poison")
    assert made.held(kept) == {"poison"}
    assert sum(len(made.held(index)) for index in made.engines if index != kept) == 9


def test_the_model_goes_on_without_an_engine_that_cannot_load_and_fails_with_the_last() -> None:
    made = opened(1, num_engines=3)
    made.load(0)
    made.cannot_load(1)
    made.die(2, load_failed=True)
    assert set(made.engines) == {0}
    assert not made.failures
    assert made.limits[1] == 8
    made.submit(1, request("a"))
    for _ in range(SETTINGS.max_restarts + 1):
        made.die()
        if made.engines:
            made.load()
            made.progress("a")
    assert [error.kind for _, error in made.failures] == ["EngineLost"]
    made.open(1)
    assert set(made.engines) == {0, 1, 2}, "a later open tries them all again"


def test_cancelling_reaches_the_engine_that_has_the_request() -> None:
    made = world(1, num_engines=3)
    made.submit(1, request("a"), request("b"))
    index = made.holder("b")
    made.cancel(1, "b")
    assert made.engines[index].cancelled == {"b"}


def engines_of(machine: Machine) -> list[int]:
    return [process.pid for process in machine.status().processes if process.role == "engine"]


def test_an_engine_killed_for_good_and_all_costs_no_request(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
    client = machine.open(num_engines=2)
    eventually(lambda: len(engines_of(machine)) == 2, "two engines")
    prompts = {f"r{number}": [ANSWER, 30, number] for number in range(24)}
    with machine.held():
        futures = {name: client.submit(prompt, SamplingParams(), request_id=name) for name, prompt in prompts.items()}
        eventually(lambda: machine.model_status().stats.running > 0, "work")
        victim, other = engines_of(machine)
        os.kill(victim, signal.SIGKILL)
    results = {name: future.result(PATIENCE).token_ids for name, future in futures.items()}
    assert results == {name: answer(prompt, 30) for name, prompt in prompts.items()}
    assert other in engines_of(machine), "the other went on"
    eventually(lambda: machine.starts() == 3, "a successor, which notes its start itself")
    eventually(lambda: len(engines_of(machine)) == 2, "two engines again")
    assert sorted(machine.model_status().pids) == sorted(engines_of(machine))


def test_engines_on_a_cpu_divide_its_cores(machine: Machine) -> None:
    machine.open(num_engines=2)
    eventually(lambda: len(engines_of(machine)) == 2, "two engines")
    for pid in engines_of(machine):
        assert psutil.Process(pid).environ()["OMP_NUM_THREADS"] == str(max(1, cores_of_engines() // 2))
