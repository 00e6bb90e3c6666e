"""Every message may be the last that its sender sends: all requests end once, with the right answer."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.model_manager.wire.errors import EngineKiller, EngineLost, InvalidRequest, MillraceError, RequestAborted
from millrace.model_manager.wire.messages import ModelFailed, Results, Submit
from millrace.model_manager.wire.request import Output
from tests.model_manager.one_process import World
from tests.model_manager.sides import Asked, ClientSide, config, expected, is_invalid
from tests.model_manager.sides import settings as manager_settings
from tests.searches import runs

ANY = st.integers(0, 2**20)
RARELY = st.integers(0, 7).map(lambda number: number == 5)
EVENTS = (
    *9 * ("go_on",),
    *5 * ("send",),
    *3 * ("cancel_and_send",),
    *2 * ("kill_engine", "lose_engine", "wait"),
    *("cancel", "cancel_future", "kill_manager", "kill_client", "close_client", "cut", "ping"),
)
PATIENT = {"max_restarts": 10**9, "max_deaths_per_request": 10**9}
HASTY = {"max_restarts": 1, "max_deaths_per_request": 1}


class Protocol(RuleBasedStateMachine):
    """One to three clients, one or two models that do not fit at once, or not until one has a smaller KV cache, one or
    two engines each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.allowed: tuple[type[MillraceError], ...] = ()

    @initialize(
        num_clients=st.integers(1, 3),
        num_models=st.sampled_from([1, 1, 2]),
        num_engines=st.integers(1, 2),
        is_patient=st.booleans(),
        keeps=st.booleans(),
        is_open=st.integers(0, 3),
        is_elastic=st.booleans(),
    )
    def start(
        self,
        num_clients: int,
        num_models: int,
        num_engines: int,
        is_patient: bool,
        keeps: bool,
        is_open: int,
        is_elastic: bool,
    ) -> None:
        """`is_patient`: however often engines die, no request fails of it. `is_open`: 0 begins before any message."""
        limits = PATIENT if is_patient else HASTY
        self.allowed = () if is_patient else (EngineKiller, EngineLost)
        self.world = World(manager_settings(results_kept_mib=1.0 if keeps else 0.0, **limits), is_elastic=is_elastic)
        self.models = [config(revision, num_engines) for revision in "ab"[:num_models]]
        for number in range(num_clients):
            self.world.open_client(self.models[number % num_models])
        if is_open:
            self.world.drain_messages()

    def client(self, number: int) -> ClientSide:
        return self.world.clients[number % len(self.world.clients)]

    @rule(event=st.sampled_from(EVENTS), which=ANY, others=st.lists(ANY, max_size=14), count=st.integers(0, 9))
    def happen(self, event: str, which: int, others: list[int], count: int) -> None:
        """One rule for all: Hypothesis leaves some rules out of each run, and here each needs the others."""
        getattr(self, event)(which, others, count)

    def send(self, which: int, others: list[int], count: int) -> None:
        for other in (which, *others[:3]):
            self.client(which).send(other % 10, stream=bool(count % 2))

    def go_on(self, which: int, others: list[int], _count: int) -> None:
        """Some messages arrive, some engines make a step."""
        for each in (which, *others):
            if possible := self.world.transitions():
                possible[each % len(possible)]()

    def cancel(self, which: int, *_: object) -> None:
        if found := self.outstanding(which):
            client, number = found
            client.cancel(number)

    def cancel_and_send(self, which: int, _others: list[int], count: int) -> None:
        if found := self.outstanding(which):
            client, number = found
            client.cancel(number)
            client.send(number, stream=bool(count % 2))

    def outstanding(self, which: int) -> tuple[ClientSide, int] | None:
        pairs = [(client, number) for client in self.world.clients for number in client.outstanding()]
        return pairs[which % len(pairs)] if pairs else None

    def cancel_future(self, which: int, *_: object) -> None:
        self.client(which).cancel_future(which)

    def ping(self, which: int, *_: object) -> None:
        link = self.client(which).session._link
        if link is not None:
            link.check(1e6)

    def kill_engine(self, which: int, _others: list[int], arrives: int) -> None:
        names = self.engines()
        if names:
            self.world.kill_engine(names[which % len(names)], arrives % 4)

    def lose_engine(self, which: int, *_: object) -> None:
        """An engine that has a companion can do no more."""
        names = self.engines()
        paired = [name for name in names if (name[0], 1 - name[1]) in names]
        if paired:
            self.world.lose_engine(paired[which % len(paired)])

    def engines(self) -> list[tuple[str, int]]:
        return sorted(self.world.manager.engines) if self.world.manager else []

    def kill_manager(self, which: int, _others: list[int], part: int) -> None:
        self.world.kill_manager(which % 4, part)

    def kill_client(self, which: int, *_: object) -> None:
        going = self.client(which)
        self.world.kill_client(going)
        self.world.open_client(going.model)

    def close_client(self, which: int, *_: object) -> None:
        going = self.client(which)
        self.world.close_client(going)
        self.world.open_client(going.model)

    def cut(self, which: int, *_: object) -> None:
        line = self.world.line_of(self.client(which))
        if line is not None:
            self.world.cut(line)

    def wait(self, which: int, *_: object) -> None:
        self.world.pass_time((0.1, 1.0, 6.0, 30.0)[which % 4])

    # ── what holds ──

    @invariant()
    def the_parts_agree(self) -> None:
        if self.world.manager is not None:
            self.world.manager.server._router.check_integrity()

    @invariant()
    def answers_are_right(self) -> None:
        for client in self.world.clients:
            for asked in client.asked:
                if asked.future.done():
                    self.check(asked)

    def check(self, asked: Asked) -> None:
        if asked.future.cancelled():
            return
        error = asked.future.exception()
        if error is not None:
            aborted = (RequestAborted,) if asked.may_be_aborted else ()
            invalid = (InvalidRequest,) if is_invalid(asked.number) else ()
            assert isinstance(error, (*self.allowed, *aborted, *invalid)), repr(error)
            return
        output, right = asked.future.result(), expected(asked.number)
        assert isinstance(output, Output)
        assert (output.token_ids, output.text, output.finish_reason) == (
            right.token_ids,
            right.text,
            right.finish_reason,
        )
        assert output.logprobs == right.logprobs
        if asked.deltas:
            assert "".join(delta.text for delta in asked.deltas) == right.text
            assert [token for delta in asked.deltas for token in delta.token_ids] == right.token_ids

    @invariant()
    def tokens_are_a_beginning_of_the_answer(self) -> None:
        if self.world.manager is None:
            return
        for model in self.world.manager.models().values():
            for name, entry in model._requests.entries.items():
                if entry.tokens:
                    assert expected(int(name[1:])).token_ids[: len(entry.tokens)] == entry.tokens

    @invariant()
    def no_credit_is_lost(self) -> None:
        """What a client counts as outstanding is on its way to the manager, there, or on its way back."""
        manager = self.world.manager
        for client in self.world.clients:
            line = self.world.line_of(client)
            session = client.session
            if manager is None or line is None or not session._ready:
                continue
            coming, number = line.writer.messages(), manager.number(line)
            model = manager.models().get(session.key)
            if number is None or model is None or number not in model.users:
                assert any(isinstance(message, ModelFailed) for message in coming)
                continue
            if any(isinstance(message, ModelFailed) for message in coming):
                continue
            going = sum(len(each.requests) for each in line.client.messages() if isinstance(each, Submit))
            back = sum(len(each.outputs) + len(each.failures) for each in coming if isinstance(each, Results))
            assert session._ledger.in_use == going + model.outstanding(number) + back
            assert not session._link._unsent  # type: ignore[union-attr]

    @invariant()
    def engines_have_what_the_manager_says(self) -> None:
        manager = self.world.manager
        for (key, index), engine in manager.engines.items() if manager is not None else ():
            slot = manager.models()[key]._engines.slots[index]  # type: ignore[union-attr]
            assert sorted(slot.entries) == sorted(engine.requests())

    @invariant()
    def engines_have_the_caches_that_the_manager_says(self) -> None:
        """A model's cache size is the sum of its engines', once the engines have done all that they were told."""
        manager = self.world.manager
        for key, model in manager.models().items() if manager is not None else ():
            engines = [engine for (of, _), engine in manager.engines.items() if of == key]  # type: ignore[union-attr]
            if (size := model.cache_bytes) and not any(engine.is_behind() for engine in engines):
                assert size == sum(engine.cache_bytes for engine in engines)

    def teardown(self) -> None:
        """All that were asked for are answered, and when all clients have gone nothing is left."""
        try:
            self.end()
        finally:
            self.world.close()

    def end(self) -> None:
        self.world.drain()
        for client in self.world.clients:
            assert [asked.number for asked in client.asked if not asked.future.done()] == []
        self.answers_are_right()
        self.no_credit_is_lost()
        for client in list(self.world.clients):
            self.world.close_client(client)
        for seconds in (0.0, 30.0, 30.0, 700.0):
            self.world.drain_messages()
            self.world.pass_time(seconds)
        if self.world.manager is not None:
            assert not self.world.manager.engines
            assert self.world.manager.server._router.is_done(self.world.now)


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=runs(60), stateful_step_count=40)
