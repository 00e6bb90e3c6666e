"""The router under random arrivals, results, deaths, cancellations and departures: every request is answered once."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.model_manager.wire.engine_messages import StepReport
from millrace.model_manager.wire.errors import NonFiniteLogits
from millrace.model_manager.wire.request import Failure, Request
from tests.model_manager.manager.router_world import SETTINGS, World, request
from tests.searches import runs

RARELY = st.integers(0, 7).map(lambda number: number == 5)


class Turmoil(RuleBasedStateMachine):
    """Anything may happen at any time."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.numbers = self.new = 0

    @initialize(target=clients, num_engines=st.sampled_from([1, 3]))
    def first(self, num_engines: int) -> int:
        self.world = World(num_engines)
        return self.join_and_open()

    @rule(target=clients)
    def join(self) -> int:
        return self.join_and_open()

    def join_and_open(self) -> int:
        self.numbers += 1
        self.world.join(self.numbers)
        self.world.open(self.numbers)
        return self.numbers

    @rule(client=clients)
    def reopen(self, client: int) -> None:
        if client in self.world.owed:
            self.world.open(client)

    @rule(client=clients, which=st.lists(st.integers(0, 5), min_size=1, max_size=6), prompt=st.integers(0, 20))
    def submit(self, client: int, which: list[int], prompt: int) -> None:
        if self.world.opened.get(client):
            self.world.submit(client, *(self.request(index, prompt) for index in which))

    def request(self, index: int, prompt: int) -> Request:
        """Two of the six have deadlines."""
        return request(f"r{index}", int(prompt == 0), deadline=20.0 if index > 3 else None)

    @rule(client=clients, count=st.integers(1, 12), family=st.sampled_from(["", "f", "g"]))
    def submit_new(self, client: int, count: int, family: str) -> None:
        if self.world.opened.get(client):
            named = [request(f"new {self.new + number}") for number in range(count)]
            self.new += count
            self.world.submit(client, *(msgspec.structs.replace(each, family=family) for each in named))

    @rule(client=clients, index=st.integers(0, 7))
    def cancel(self, client: int, index: int) -> None:
        """One of the six that come again and again, or a late one of the others."""
        if self.world.opened.get(client):
            self.world.cancel(client, f"r{index}" if index < 6 else f"new {self.new - index + 5}")

    @rule(client=clients, cleanly=st.booleans(), indeed=RARELY)
    def leave(self, client: int, cleanly: bool, indeed: bool) -> None:
        if indeed and client in self.world.owed:
            self.world.leave(client, cleanly=cleanly)

    @precondition(lambda self: self.loading())
    @rule(data=st.data(), refused=RARELY)
    def load(self, data: st.DataObject, refused: bool) -> None:
        (self.world.cannot_load if refused else self.world.load)(data.draw(st.sampled_from(self.loading())))

    @precondition(lambda self: self.world.engines)
    @rule(data=st.data(), load_failed=RARELY)
    def die(self, data: st.DataObject, load_failed: bool) -> None:
        index = data.draw(st.sampled_from(sorted(self.world.engines)))
        self.world.die(index, load_failed=load_failed and not self.world.engines[index].ready)

    @precondition(lambda self: self.working())
    @rule(data=st.data(), what=st.sampled_from(["progress", "finish", "finish", "fail"]))
    def step(self, data: st.DataObject, what: str) -> None:
        index = data.draw(st.sampled_from(self.working()))
        name = data.draw(st.sampled_from(sorted(self.world.held(index))))
        if what == "progress":
            self.world.progress(name, index=index)
        elif what == "finish":
            self.world.finish(name, index)
        else:
            del self.world.engines[index].tokens[name]
            self.world.engines[index].cancelled.discard(name)
            self.world.report(StepReport(failures=[Failure(name, NonFiniteLogits("NaN").info())]), index)

    def loading(self) -> list[int]:
        return [index for index, engine in self.world.engines.items() if not engine.ready]

    def working(self) -> list[int]:
        return [index for index, engine in self.world.engines.items() if engine.tokens]

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 30.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(indeed=RARELY)
    def stop(self, indeed: bool) -> None:
        if indeed:
            self.world.router.stop_model(None)
            self.world.settle()

    @invariant()
    def engines_hold_no_more_than_they_can(self) -> None:
        assert all(len(engine.tokens) <= 8 for engine in self.world.engines.values())

    @invariant()
    def no_engine_is_idle_while_requests_wait(self) -> None:
        """One may be kept for suspects."""
        ready = [engine for engine in self.world.engines.values() if engine.ready]
        held = {name for engine in ready for name in engine.tokens}
        if any(owed.keys() - held for owed in (+each for each in self.world.owed.values())):
            assert sum(not engine.tokens for engine in ready) <= 1

    def teardown(self) -> None:
        """Whatever happened: all who wait are answered, and when all have gone nothing is left."""
        self.world.finish_all()
        assert all(not +owed for owed in self.world.owed.values()), f"not answered: {self.world.owed}"
        for client in list(self.world.owed):
            self.world.leave(client, cleanly=False)
        self.world.pass_time(SETTINGS.orphan_grace + 1)
        self.world.finish_all()
        self.world.pass_time(SETTINGS.linger + SETTINGS.results_kept + 20)
        assert not self.world.engines
        assert self.world.router.is_done(self.world.now)


TestTurmoil = Turmoil.TestCase
TestTurmoil.settings = settings(max_examples=runs(260), stateful_step_count=40)
