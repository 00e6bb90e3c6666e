"""A model whose engines, memory and clients do what they like: who opened it is told once, and engines run once."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.model_manager.manager.counts import ModelCounts
from millrace.model_manager.manager.engine_pool import RUNNING, State
from millrace.model_manager.manager.gpus import EngineSetup
from millrace.model_manager.manager.jobs import JobCounts
from millrace.model_manager.manager.model import Model
from millrace.model_manager.manager.outbox import Effect, Outbox, Start, Stop, ToClient, ToEngine
from millrace.model_manager.manager.results import KeptResults
from millrace.model_manager.store.memory import MemoryNeed
from millrace.model_manager.wire.engine_messages import ResizeCache, StepReport
from millrace.model_manager.wire.errors import ModelDoesNotFit, ModelLost
from millrace.model_manager.wire.messages import Cancel, Credits, ModelFailed, ModelReady, OpenModel, Results, Submit
from millrace.model_manager.wire.request import FinishReason
from tests.model_manager.manager.router_world import CONFIG, INFO, SETTINGS, output, request
from tests.searches import runs

EVENTS = (
    *5 * ("load",),
    *4 * ("open", "submit", "admit", "finish"),
    *2 * ("die", "cancel", "wait", "resize", "answer"),
    *("make_room", "lose", "refuse", "load_fails", "evict", "drain", "end_drain", "crowd", "leave", "close", "replace"),
)
ANY = st.integers(0, 2**16)
CACHE = 1000


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
        self.caches: dict[int, int] = {}
        """Bytes of each loaded engine's cache."""
        self.targets: dict[int, int] = {}
        """What engines were told that have not answered."""

    @initialize(num_engines=st.integers(1, 3), is_known=st.booleans())
    def make(self, num_engines: int, is_known: bool) -> None:
        setups = [EngineSetup(CONFIG)] * num_engines
        counts = {"jobs": JobCounts(), "counts": ModelCounts(CONFIG.model)}
        kinds = {"settings": SETTINGS, "outbox": self.outbox, "kept": self.kept, **counts}
        known = INFO if is_known else None
        self.model = Model(CONFIG, "/", setups, need=MemoryNeed(), known=known, **kinds)  # type: ignore[arg-type]

    # ── clients ──

    @rule(event=st.sampled_from(EVENTS), which=ANY, how=ANY)
    def happen(self, event: str, which: int, how: int) -> None:
        """One rule for all: Hypothesis leaves some rules out of each run, and here each needs the others."""
        getattr(self, event)(which, how)
        self.settle()

    def open(self, which: int, how: int) -> None:
        """Nobody opens a model that has failed: the router makes another."""
        client = 1 + which % 3
        if self.model.state is not State.FAILED:
            self.opens[client] = 1  # one answer is for all opens before it
            self.owed.setdefault(client, set())
            self.model.open(client, OpenModel(CONFIG, "/", on_demand=bool(how % 2)), self.now)

    def submit(self, which: int, how: int) -> None:
        client = 1 + which % 3
        for _ in range(1 + how % 9 if client in self.owed and not self.opens[client] else 0):
            self.new += 1
            name = f"r{self.new}"
            self.owed[client].add(name)
            self.model.submit(client, request(name), self.now)

    def cancel(self, which: int, how: int) -> None:
        client = 1 + which % 3
        if names := sorted(self.owed.get(client, ())):
            self.model.cancel(client, names[how % len(names)], self.now)

    def leave(self, which: int, how: int, *, died: bool = True) -> None:
        client = 1 + which % 3
        if self.owed.pop(client, None) is not None:
            del self.opens[client]
            self.model.leave(client, died=died, now=self.now, lingers=bool(how % 2))

    def close(self, which: int, how: int) -> None:
        self.leave(which, how, died=False)

    # ── memory ──

    def admit(self, which: int = 0, _how: int = 0) -> None:
        if self.model.state is State.WAITING:
            self.model.load(2**30 if which % 2 else None)

    def evict(self, *_: int) -> None:
        if self.model.state is State.READY and not self.model.use(1.0).works:
            self.model.unload()
            self.settle()
            assert not self.engines

    def make_room(self, which: int, how: int) -> None:
        """What has come is finished, what comes now waits, and the model goes."""
        self.drain()
        self.now += 0.01
        self.submit(which, how)
        while any(self.engines.values()):
            self.finish()
            self.settle()
        self.evict()

    def drain(self, *_: int) -> None:
        if self.model.state is State.READY:
            self.model.drain(self.now)

    def end_drain(self, *_: int) -> None:
        self.model.end_drain()

    def resize(self, which: int, _how: int) -> None:
        """As the memory scheduler does it: not before all engines have answered."""
        if self.model.state is State.READY and self.model.cache_bytes:
            self.model.resize_cache(1 + which % CACHE)
            assert self.model.cache_bytes is None

    def answer(self, which: int = 0, _how: int = 0) -> None:
        if self.targets:
            index = sorted(self.targets)[which % len(self.targets)]
            self.caches[index] = self.targets.pop(index)
            self.model.cache_resized(index, self.caches[index])

    def crowd(self, which: int, _how: int) -> None:
        self.model.crowd(bool(which % 2))
        if which % 2 and self.model.can_load_on_demand:
            self.model.open_on_demand()

    def replace(self, which: int, _how: int) -> None:
        """It fails, or is stopped, and the router makes another, now or later."""
        if self.model.state is not State.FAILED and which % 2:
            self.model.fail(ModelDoesNotFit("no").info())
            self.settle()
        if self.model.state is State.FAILED:
            assert not self.engines
            assert not self.owed
            assert not self.model.is_needed
            self.make(1 + which % 3, bool(which % 2))

    # ── engines ──

    def loading(self, which: int) -> int | None:
        found = sorted(index for index, engine in self.engines.items() if engine is None)
        return found[which % len(found)] if found else None

    def load(self, which: int = 0, _how: int = 0) -> None:
        if (index := self.loading(which)) is not None:
            self.engines[index], self.caches[index] = {}, CACHE
            self.model.ready(index, msgspec.structs.replace(INFO, cache_bytes=CACHE), self.now)

    def refuse(self, which: int, _how: int) -> None:
        if (index := self.loading(which)) is not None:
            self.model.cannot_load(index, ModelDoesNotFit("no").info(), self.now)

    def load_fails(self, which: int, _how: int) -> None:
        if (index := self.loading(which)) is not None:
            self.forget(index)
            self.model.died(index, "no such module", load_failed=True, now=self.now)

    def die(self, which: int, _how: int) -> None:
        if self.engines:
            index = sorted(self.engines)[which % len(self.engines)]
            self.forget(index)
            self.model.died(index, "killed", load_failed=False, now=self.now)

    def forget(self, index: int) -> None:
        del self.engines[index]
        self.caches.pop(index, None)
        self.targets.pop(index, None)

    def lose(self, which: int, _how: int) -> None:
        """A loaded engine says that it can answer no request any more."""
        loaded = sorted(index for index, engine in self.engines.items() if engine is not None)
        if loaded:
            self.model.cannot_load(loaded[which % len(loaded)], ModelLost("gone").info(), self.now)

    def finish(self, which: int = 0, _how: int = 0) -> None:
        working = [(index, name) for index, engine in sorted(self.engines.items()) for name in sorted(engine or ())]
        if working:
            index, name = working[which % len(working)]
            engine = self.engines[index]
            assert engine is not None
            reason = FinishReason.ABORT if engine.pop(name) else FinishReason.LENGTH
            self.model.report(index, StepReport(outputs=[output(name, [1], reason)]), self.now)

    def wait(self, which: int, _how: int = 0) -> None:
        self.now += (0.1, 3.0, 30.0, 100.0)[which % 4]
        self.model.tick(self.now)

    # ── effects ──

    def settle(self) -> None:
        self.model.pump(self.now)
        for effect in self.outbox.drain():
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Start(_, _, _, index):
                assert index not in self.engines, "a second engine in one place"
                self.engines[index] = None
            case Stop(_, index):
                self.forget(index)
            case ToEngine(_, ResizeCache(size), index):
                assert self.engines[index] is not None, "told before the model is loaded"
                self.targets[index] = size
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
        assert set(self.owed) == set(self.model.users)
        running = {slot.index: slot for slot in self.model._engines.slots if slot.state in RUNNING}
        assert set(running) == set(self.engines)
        for index, slot in running.items():
            assert (slot.state is State.READY) == (self.engines[index] is not None)
            assert set(slot.entries) == set(self.engines[index] or ())

    @invariant()
    def caches_are_as_large_as_they_say(self) -> None:
        """Engines that were started again too have what the others were told."""
        if self.model.state is State.READY and (size := self.model.cache_bytes):
            assert not self.targets
            assert size == sum(self.caches.values())
            assert len(set(self.caches.values())) == 1

    @invariant()
    def who_waits_is_heard(self) -> None:
        """Somebody wants the model: it is loaded, or is to be. Nobody waits for one that is ready."""
        if self.model.state is State.READY:
            assert not any(self.opens.values())
        elif any(self.opens.values()) or any(self.owed.values()):
            assert self.model.state in (State.WAITING, *RUNNING)

    def teardown(self) -> None:
        """Engines that live answer everything; then nothing is left."""
        for _ in range(300):
            self.go_on()
        assert not any(self.owed.values())
        assert not any(self.opens.values())
        for client in (0, 1, 2):
            self.leave(client, 1)
        for _ in range(6):
            self.wait(3)
            for _ in range(60):
                self.go_on()
        assert not self.model.is_needed
        assert not self.engines

    def go_on(self) -> None:
        for event in (self.end_drain, self.admit, self.load, self.answer, self.finish):
            event()
            self.settle()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=runs(150), stateful_step_count=40)
