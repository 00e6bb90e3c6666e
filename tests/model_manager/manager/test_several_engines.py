"""A model with several engines: what each gets, what the others do when one dies; every request is answered once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import psutil
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millrace.model_manager.manager.outbox import Effect, Start, Stop, ToClient, ToEngine
from millrace.model_manager.manager.router import Router
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ErrorInfo, ModelDoesNotFit
from millrace.model_manager.wire.messages import (
    Cancel,
    Credits,
    Failure,
    FinishReason,
    ModelFailed,
    ModelReady,
    OpenModel,
    Output,
    Request,
    Results,
    StepReport,
    Submit,
)
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.machine import PATIENCE, Machine
from tests.model_manager.manager.router_world import INFO, SETTINGS, Engine, output, request
from tests.model_manager.manager.stand_in_engine import ANSWER, answer
from tests.waiting import eventually

CONFIG = ModelConfig(backend="fake", max_num_seqs=4, num_engines=3)
KEY = CONFIG.key
CLIENT = 1


@dataclass
class World:
    """A router, one client, and engines that only keep accounts."""

    now: float = 0.0
    router: Router = field(default_factory=lambda: Router(SETTINGS, 0.0, cores=6))
    engines: dict[int, Engine] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    owed: Counter[str] = field(default_factory=Counter)
    answers: list[Output | Failure] = field(default_factory=list)
    failures: list[ErrorInfo] = field(default_factory=list)
    ready: int = 0
    limit: int = 0

    def __post_init__(self) -> None:
        self.router.connect(CLIENT, observer=False)
        self.open()

    def open(self) -> None:
        self.failures = []
        self.router.open_model(CLIENT, OpenModel(CONFIG, "/"), self.now)
        self.settle()

    def load(self, *which: int) -> None:
        for index in which:
            self.engines[index].ready = True
            self.router.model(KEY).ready(index, INFO, self.now)
            self.settle()

    def submit(self, *requests: Request) -> None:
        self.owed.update(each.request_id for each in requests)
        self.router.submit(CLIENT, Submit(KEY, list(requests)), self.now)
        self.settle()

    def finish(self, index: int, name: str) -> None:
        engine = self.engines[index]
        reason = FinishReason.ABORT if name in engine.cancelled else FinishReason.LENGTH
        done = output(name, [*engine.tokens.pop(name), 9], reason)
        self.router.model(KEY).report(index, StepReport(outputs=[done]), self.now)
        self.settle()

    def progress(self, index: int, name: str) -> None:
        self.engines[index].tokens[name].append(7)
        self.router.model(KEY).report(index, StepReport(progress={name: [7]}), self.now)
        self.settle()

    def die(self, index: int, *, hopeless: bool = False) -> None:
        del self.engines[index]
        self.router.model(KEY).died(index, "killed", hopeless=hopeless, now=self.now)
        self.settle()

    def held(self, index: int) -> set[str]:
        return set(self.engines[index].tokens)

    def settle(self) -> None:
        for effect in self.router.effects(self.now):
            self._carry_out(effect)
        self.router.check_integrity()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Start(_, _, _, index):
                assert index not in self.engines, "a second engine in one place"
                self.engines[index] = Engine()
                self.starts.append(effect)
            case Stop(_, index):
                del self.engines[index]
            case ToEngine(_, Submit(_, requests), index):
                self._engine_takes(index, requests)
            case ToEngine(_, Cancel(_, names), index):
                self.engines[index].cancelled |= set(names) & self.held(index)
            case ToClient(_, message):
                self._client_takes(message)

    def _engine_takes(self, index: int, requests: list[Request]) -> None:
        assert self.engines[index].ready, "requests before the model is loaded"
        for each in requests:
            assert not any(each.request_id in engine.tokens for engine in self.engines.values()), "it runs already"
            self.engines[index].tokens[each.request_id] = list(each.output_token_ids)

    def _client_takes(self, message: object) -> None:
        match message:
            case Results(_, outputs, failures):
                answers: list[Output | Failure] = [*outputs, *failures]
                for given in answers:
                    self.owed[given.request_id] -= 1
                    assert self.owed[given.request_id] >= 0, "answered more often than asked"
                    self.answers.append(given)
            case ModelFailed(_, error):
                self.owed.clear()
                self.failures.append(error)
            case ModelReady():
                self.ready += 1
            case Credits(_, limit):
                self.limit = limit

    def finish_all(self) -> None:
        while self.engines and (any(e.tokens for e in self.engines.values()) or not self._all_ready()):
            for index, engine in list(self.engines.items()):
                if not engine.ready:
                    self.load(index)
                elif engine.tokens:
                    self.finish(index, next(iter(engine.tokens)))

    def _all_ready(self) -> bool:
        return all(engine.ready for engine in self.engines.values())


def test_credits_grow_with_each_engine_that_is_ready() -> None:
    made = World()
    limits = []
    for index in range(3):
        made.load(index)
        limits.append(made.limit)
    assert limits == [8, 16, 24]


def test_a_request_that_kills_fails_alone_while_the_other_engines_go_on() -> None:
    made = World()
    made.load(0, 1, 2)
    made.submit(request("poison"), *(request(f"r{number}") for number in range(5)))
    for _ in range(SETTINGS.max_deaths_per_request + 1):
        (index,) = [index for index, engine in made.engines.items() if "poison" in engine.tokens]
        made.die(index)
        made.load(index)
        for other in [other for other, engine in made.engines.items() if "poison" not in engine.tokens]:
            for name in list(made.engines[other].tokens):
                made.finish(other, name)
    made.finish_all()
    failed = [given for given in made.answers if isinstance(given, Failure)]
    assert [(given.request_id, given.error.kind) for given in failed] == [("poison", "EngineKiller")]
    assert len(made.answers) == 6


def test_a_suspect_runs_alone_and_only_one_engine_waits_for_it() -> None:
    made = World()
    made.load(0, 1, 2)
    made.submit(request("poison"))
    for _ in range(SETTINGS.max_deaths_per_request):
        (index,) = [index for index, engine in made.engines.items() if "poison" in engine.tokens]
        made.die(index)
        made.load(index)
    made.submit(*(request(f"r{number}") for number in range(9)))
    (kept,) = [index for index, engine in made.engines.items() if "poison" in engine.tokens]
    assert made.held(kept) == {"poison"}
    assert sum(len(made.held(index)) for index in made.engines if index != kept) == 9


def test_the_model_goes_on_without_an_engine_that_cannot_load_and_fails_with_the_last() -> None:
    made = World()
    made.load(0)
    made.router.model(KEY).cannot_load(1, ModelDoesNotFit("no room on this one").info())
    made.settle()
    made.die(2, hopeless=True)
    assert set(made.engines) == {0}
    assert not made.failures
    assert made.limit == 8
    made.submit(request("a"))
    for _ in range(SETTINGS.max_restarts + 1):
        made.die(0)
        if 0 in made.engines:
            made.load(0)
            made.progress(0, "a")
    assert [error.kind for error in made.failures] == ["EngineLost"]
    made.open()
    assert set(made.engines) == {0, 1, 2}, "a later open tries them all again"


def test_cancelling_reaches_the_engine_that_has_the_request() -> None:
    made = World()
    made.load(0, 1, 2)
    made.submit(request("a"), request("b"))
    (index,) = [index for index, engine in made.engines.items() if "b" in engine.tokens]
    made.router.cancel(CLIENT, Cancel(KEY, ["b"]), made.now)
    made.settle()
    assert made.engines[index].cancelled == {"b"}


class Turmoil(RuleBasedStateMachine):
    """Engines load, work and die in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.names = 0

    @rule(count=st.integers(1, 12), family=st.sampled_from(["", "", "f", "g"]))
    def submit(self, count: int, family: str) -> None:
        if self.world.failures:
            self.world.open()
        named = [request(f"r{self.names + number}") for number in range(count)]
        fresh = [msgspec.structs.replace(each, family=family) for each in named]
        self.names += count
        self.world.submit(*fresh)

    @rule(index=st.integers(0, 2))
    def load(self, index: int) -> None:
        if index in self.world.engines and not self.world.engines[index].ready:
            self.world.load(index)

    @rule(index=st.integers(0, 2), hopeless=st.integers(0, 9))
    def die(self, index: int, hopeless: int) -> None:
        if index in self.world.engines:
            self.world.die(index, hopeless=hopeless == 0 and not self.world.engines[index].ready)

    @rule(index=st.integers(0, 2), progress=st.booleans(), data=st.data())
    def step(self, index: int, progress: bool, data: st.DataObject) -> None:
        if index in self.world.engines and (held := sorted(self.world.held(index))):
            name = data.draw(st.sampled_from(held))
            (self.world.progress if progress else self.world.finish)(index, name)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if waiting := sorted(+self.world.owed):
            self.world.router.cancel(CLIENT, Cancel(KEY, [data.draw(st.sampled_from(waiting))]), 0.0)
            self.world.settle()

    @invariant()
    def engines_hold_no_more_than_they_can(self) -> None:
        assert all(len(engine.tokens) <= 8 for engine in self.world.engines.values())

    @invariant()
    def no_engine_is_idle_while_requests_wait(self) -> None:
        """One may be kept for suspects."""
        ready = [engine for engine in self.world.engines.values() if engine.ready]
        held = sum(len(engine.tokens) for engine in ready)
        if sum(self.world.owed.values()) > held:
            assert sum(not engine.tokens for engine in ready) <= 1

    def teardown(self) -> None:
        self.world.finish_all()
        assert not +self.world.owed, f"not answered: {self.world.owed}"


TestTurmoil = Turmoil.TestCase
TestTurmoil.settings = settings(max_examples=60, stateful_step_count=30)


def engines_of(machine: Machine) -> list[int]:
    return [process.pid for process in machine.status().processes if process.role == "engine"]


def test_an_engine_killed_for_good_and_all_costs_no_request(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
    client = machine.open(num_engines=2)
    eventually(lambda: len(engines_of(machine)) == 2, "two engines")
    prompts = {f"r{number}": [ANSWER, 30, number] for number in range(24)}
    futures = {name: client.submit(prompt, SamplingParams(), request_id=name) for name, prompt in prompts.items()}
    eventually(lambda: machine.model_status().stats.running > 0, "work")
    victim, other = engines_of(machine)
    os.kill(victim, signal.SIGKILL)
    results = {name: future.result(PATIENCE).token_ids for name, future in futures.items()}
    assert results == {name: answer(prompt, 30) for name, prompt in prompts.items()}
    assert other in engines_of(machine), "the other went on"
    eventually(lambda: len(engines_of(machine)) == 2, "a successor")
    assert machine.starts() == 3
    assert sorted(machine.model_status().pids) == sorted(engines_of(machine))


def test_engines_on_a_cpu_divide_its_cores(machine: Machine) -> None:
    machine.open(num_engines=2)
    eventually(lambda: len(engines_of(machine)) == 2, "two engines")
    cores = len(os.sched_getaffinity(0))
    for pid in engines_of(machine):
        assert psutil.Process(pid).environ()["OMP_NUM_THREADS"] == str(max(1, cores // 2))
