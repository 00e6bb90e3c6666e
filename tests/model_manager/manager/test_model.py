"""A model whose engines, memory and clients do what they like: who opened it is told once, and engines run once."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.model_manager.manager.engine_pool import RUNNING, State
from millrace.model_manager.manager.gpus import EngineSetup
from millrace.model_manager.manager.jobs import JobCounts
from millrace.model_manager.manager.model import Model
from millrace.model_manager.manager.outbox import Effect, Outbox, Start, Stop, ToClient, ToEngine
from millrace.model_manager.manager.results import KeptResults
from millrace.model_manager.store.memory import MemoryNeed
from millrace.model_manager.wire.errors import ModelDoesNotFit, ModelLost
from millrace.model_manager.wire.messages import (
    Cancel,
    Credits,
    FinishReason,
    ModelFailed,
    ModelReady,
    OpenModel,
    Results,
    StepReport,
    Submit,
)
from tests.model_manager.manager.router_world import CONFIG, INFO, SETTINGS, output, request

RARELY = st.integers(0, 7).map(lambda number: number == 5)
CLIENTS = st.integers(1, 3)
ENGINES = st.integers(0, 9)


class Life(RuleBasedStateMachine):
    """One to three engines, three clients, and whoever shares the machine's memory out."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.new = 0
        self.outbox = Outbox()
        self.kept = KeptResults(0, 60)
        self.opens: Counter[int] = Counter()
        """Opens of each client that are not answered."""
        self.owed: dict[int, set[str]] = {}
        """Requests of each user."""
        self.engines: dict[int, dict[str, bool] | None] = {}
        """Requests of each engine that runs, and whether they are cancelled; None while it loads."""

    @initialize(num_engines=st.integers(1, 3))
    def make(self, num_engines: int) -> None:
        setups = [EngineSetup(CONFIG)] * num_engines
        kinds = {"settings": SETTINGS, "outbox": self.outbox, "kept": self.kept, "jobs": JobCounts()}
        self.model = Model(CONFIG, "/", setups, need=MemoryNeed(), **kinds)  # type: ignore[arg-type]

    # ── clients ──

    @rule(client=CLIENTS)
    def open(self, client: int) -> None:
        """Nobody opens a model that has failed: the router makes another."""
        if self.model.state is not State.FAILED:
            self.opens[client] += not self.opens[client]  # one answer is for all opens before it
            self.owed.setdefault(client, set())
            self.model.open(client, OpenModel(CONFIG, "/"), self.now)
            self.settle()

    @rule(client=CLIENTS, count=st.integers(1, 9))
    def submit(self, client: int, count: int) -> None:
        for _ in range(count if client in self.owed and not self.opens[client] else 0):
            self.new += 1
            name = f"r{self.new}"
            self.owed[client].add(name)
            self.model.submit(client, request(name), self.now)
        self.settle()

    @rule(client=CLIENTS, which=ENGINES)
    def cancel(self, client: int, which: int) -> None:
        if names := sorted(self.owed.get(client, ())):
            self.model.cancel(client, names[which % len(names)], self.now)
            self.settle()

    @rule(client=CLIENTS, died=st.booleans(), lingers=st.booleans(), indeed=RARELY)
    def leave(self, client: int, died: bool, lingers: bool, indeed: bool) -> None:
        if indeed and self.owed.pop(client, None) is not None:
            del self.opens[client]
            self.model.leave(client, died=died, now=self.now, lingers=lingers)
            self.settle()

    # ── memory ──

    @precondition(lambda self: self.model.state is State.WAITING)
    @rule(cache=st.sampled_from([None, 2**30]))
    def admit(self, cache: int | None) -> None:
        self.model.load(cache)
        self.settle()

    @precondition(lambda self: self.model.state is State.READY and not self.model.use.works)
    @rule()
    def evict(self) -> None:
        self.model.unload()
        assert self.settle() or not self.engines
        assert not self.engines

    @precondition(lambda self: self.model.state is State.READY)
    @rule(ends=st.booleans())
    def drain(self, ends: bool) -> None:
        if ends:
            self.model.end_drain()
        else:
            self.model.drain(self.now)
        self.settle()

    @rule(is_crowded=st.booleans())
    def crowd(self, is_crowded: bool) -> None:
        self.model.crowd(is_crowded)
        self.settle()

    @rule(indeed=RARELY, again=RARELY)
    def fail(self, indeed: bool, again: bool) -> None:
        if indeed and again:
            self.model.fail(ModelDoesNotFit("no").info())
            self.settle()
            assert self.model.state is State.FAILED

    # ── engines ──

    @precondition(lambda self: None in self.engines.values())
    @rule(which=ENGINES, how=st.sampled_from(["ready", "ready", "ready", "refused", "load failed"]), indeed=RARELY)
    def load(self, which: int, how: str, indeed: bool) -> None:
        loading = sorted(index for index, engine in self.engines.items() if engine is None)
        index = loading[which % len(loading)]
        if how == "ready" or not indeed:
            self.engines[index] = {}
            self.model.ready(index, INFO, self.now)
        elif how == "refused":
            self.model.cannot_load(index, ModelDoesNotFit("no").info(), self.now)
        else:
            del self.engines[index]
            self.model.died(index, "no such module", load_failed=True, now=self.now)
        self.settle()

    @precondition(lambda self: self.engines)
    @rule(which=ENGINES)
    def die(self, which: int) -> None:
        index = sorted(self.engines)[which % len(self.engines)]
        del self.engines[index]
        self.model.died(index, "killed", load_failed=False, now=self.now)
        self.settle()

    @precondition(lambda self: any(engine is not None for engine in self.engines.values()))
    @rule(which=ENGINES, indeed=RARELY)
    def lose(self, which: int, indeed: bool) -> None:
        """A loaded engine says that no request can be answered any more."""
        loaded = sorted(index for index, engine in self.engines.items() if engine is not None)
        if indeed:
            self.model.cannot_load(loaded[which % len(loaded)], ModelLost("gone").info(), self.now)
            self.settle()

    @precondition(lambda self: any(self.engines.values()))
    @rule(which=ENGINES)
    def finish(self, which: int) -> None:
        working = [(index, name) for index, engine in sorted(self.engines.items()) for name in sorted(engine or ())]
        index, name = working[which % len(working)]
        engine = self.engines[index]
        assert engine is not None
        reason = FinishReason.ABORT if engine.pop(name) else FinishReason.LENGTH
        self.model.report(index, StepReport(outputs=[output(name, [1], reason)]), self.now)
        self.settle()

    @rule(seconds=st.sampled_from([0.1, 3.0, 30.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.model.tick(self.now)
        self.settle()

    # ── effects ──

    def settle(self) -> bool:
        """Carry out what is due; whether there was anything."""
        self.model.pump(self.now)
        effects = self.outbox.drain()
        for effect in effects:
            self.carry_out(effect)
        return bool(effects)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Start(_, _, _, index):
                assert index not in self.engines, "a second engine in one place"
                self.engines[index] = None
            case Stop(_, index):
                del self.engines[index]
            case ToEngine(_, Submit(_, requests), index):
                engine = self.engines[index]
                assert engine is not None, "requests before the model is loaded"
                names = {each.request_id for each in requests}
                assert not any(names & set(other or ()) for other in self.engines.values()), "it runs already"
                engine.update(dict.fromkeys(names, False))
            case ToEngine(_, Cancel(_, names), index):
                engine = self.engines[index]
                assert engine is not None
                engine.update((name, True) for name in names if name in engine)
            case ToClient(client, message):
                assert client in self.owed, "a message to who does not use it"
                self.take(client, message)

    def take(self, client: int, message: object) -> None:
        match message:
            case ModelReady():
                assert self.opens[client], "told without having asked"
                self.opens[client] = 0
            case ModelFailed():
                del self.owed[client], self.opens[client]
            case Results(_, outputs, failures):
                for name in [each.request_id for each in outputs] + [each.request_id for each in failures]:
                    self.owed[client].remove(name)
            case Credits(_, limit):
                assert limit >= 1

    # ── what holds ──

    @invariant()
    def the_parts_agree(self) -> None:
        self.model.check_integrity()
        assert set(self.owed) == self.model.users
        running = {slot.index: slot for slot in self.model._engines.slots if slot.state in RUNNING}
        assert set(running) == set(self.engines)
        for index, slot in running.items():
            assert (slot.state is State.READY) == (self.engines[index] is not None)
            assert set(slot.entries) == set(self.engines[index] or ())

    @invariant()
    def who_waits_is_heard(self) -> None:
        """Somebody wants the model: it is loaded, or is to be. Nobody waits for one that is ready."""
        if self.model.state is State.READY:
            assert not any(self.opens.values())
        elif any(self.opens.values()) or any(self.owed.values()):
            assert self.model.state in (State.WAITING, *RUNNING)

    def teardown(self) -> None:
        """Engines that live answer everything; then nothing is left."""
        for _ in range(500):
            if self.model.state is State.WAITING:
                self.admit(None)
            elif None in self.engines.values():
                self.load(0, "ready", False)
            elif any(self.engines.values()):
                self.finish(0)
            elif any(self.owed.values()):
                self.drain(ends=True)
            else:
                break
        assert not any(self.owed.values())
        assert not any(self.opens.values())
        for client in list(self.owed):
            self.leave(client, died=True, lingers=True, indeed=True)
        for _ in range(100):
            if any(self.engines.values()):
                self.finish(0)
            else:
                self.wait(100.0)
            if None in self.engines.values():
                self.load(0, "ready", False)
            if self.model.state is State.WAITING:
                self.admit(None)
            if not self.model.is_needed:
                break
        assert not self.model.is_needed
        assert not self.engines


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=40)
