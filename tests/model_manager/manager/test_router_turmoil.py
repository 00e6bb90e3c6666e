"""The router under random arrivals, results, deaths, cancellations and departures: every request is answered once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.model_manager.wire.errors import ModelDoesNotFit, NonFiniteLogits
from millrace.model_manager.wire.messages import Failure, Request, StepReport
from tests.model_manager.manager.router_world import KEY, SETTINGS, World, request

RARELY = st.integers(0, 7).map(lambda number: number == 5)


class Turmoil(RuleBasedStateMachine):
    """Anything may happen at any time."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.numbers = 0

    @initialize(target=clients)
    def first(self) -> int:
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

    @rule(client=clients, index=st.integers(0, 5))
    def cancel(self, client: int, index: int) -> None:
        if self.world.opened.get(client):
            self.world.cancel(client, f"r{index}")

    @rule(client=clients, cleanly=st.booleans(), indeed=RARELY)
    def leave(self, client: int, cleanly: bool, indeed: bool) -> None:
        if indeed and client in self.world.owed:
            self.world.leave(client, cleanly=cleanly)

    @precondition(lambda self: self.world.engine is not None and not self.world.engine.ready)
    @rule()
    def load(self) -> None:
        self.world.load()

    @precondition(lambda self: self.world.engine is not None and not self.world.engine.ready)
    @rule(indeed=RARELY)
    def refuse(self, indeed: bool) -> None:
        if indeed:
            self.world.router.model(KEY).cannot_load(0, ModelDoesNotFit("no").info())
            self.world.settle()
        else:
            self.world.load()

    @precondition(lambda self: self.world.engine is not None)
    @rule(hopeless=RARELY)
    def die(self, hopeless: bool) -> None:
        assert self.world.engine is not None
        self.world.die(hopeless=hopeless and not self.world.engine.ready)

    @precondition(lambda self: self.world.engine is not None and self.world.engine.tokens)
    @rule(data=st.data(), what=st.sampled_from(["progress", "finish", "finish", "fail"]))
    def step(self, data: st.DataObject, what: str) -> None:
        assert self.world.engine is not None
        name = data.draw(st.sampled_from(sorted(self.world.engine.tokens)))
        if what == "progress":
            self.world.progress(name)
        elif what == "finish":
            self.world.finish(name)
        else:
            del self.world.engine.tokens[name]
            self.world.engine.cancelled.discard(name)
            self.world.report(StepReport(failures=[Failure(name, NonFiniteLogits("NaN").info())]))

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 30.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(indeed=RARELY)
    def stop(self, indeed: bool) -> None:
        if indeed:
            self.world.router.stop_model(None)
            self.world.settle()

    @invariant()
    def engine_holds_no_more_than_it_can(self) -> None:
        assert self.world.engine is None or len(self.world.engine.tokens) <= 8

    def teardown(self) -> None:
        """Whatever happened: all who wait are answered, and when all have gone nothing is left."""
        self.world.finish_all()
        assert all(not +owed for owed in self.world.owed.values()), f"not answered: {self.world.owed}"
        for client in list(self.world.owed):
            self.world.leave(client, cleanly=False)
        self.world.pass_time(SETTINGS.orphan_grace + 1)
        self.world.finish_all()
        self.world.pass_time(SETTINGS.linger + SETTINGS.results_kept + 20)
        assert self.world.engine is None
        assert self.world.router.is_done(self.world.now)


TestTurmoil = Turmoil.TestCase
TestTurmoil.settings = settings(max_examples=200, stateful_step_count=40)
