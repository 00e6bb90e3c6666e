"""A model's requests under any order of events: each submit is answered once, in its turn, and rightly."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.model_manager.manager.counts import ModelCounts
from millrace.model_manager.manager.engine_pool import EnginePool, State
from millrace.model_manager.manager.gpus import EngineSetup
from millrace.model_manager.manager.jobs import JobCounts
from millrace.model_manager.manager.outbox import Effect, Outbox, ToClient, ToEngine
from millrace.model_manager.manager.requests import Requests
from millrace.model_manager.manager.results import KeptResults
from millrace.model_manager.wire.engine_messages import StepReport
from millrace.model_manager.wire.errors import NonFiniteLogits
from millrace.model_manager.wire.messages import Cancel, Progress, Results, Submit
from millrace.model_manager.wire.request import Failure, FinishReason, Output, Request
from tests.model_manager.manager.router_world import CONFIG, INFO, KEY, SETTINGS, output, request
from tests.searches import runs

EVENTS = (
    *6 * ("submit",),
    *4 * ("step",),
    *3 * ("carry_out", "cancel_and_submit"),
    *2 * ("finish", "fail"),
    *("cancel", "die", "wait", "drain", "drain", "end_drain", "leave", "close", "keep_tokens"),
)
ANY = st.integers(0, 2**16)
NAMES = "abd"
WHOLE = 3
"""Tokens of a whole answer."""
FAILURES = {"InvalidRequest", "NonFiniteLogits", "EngineKiller", "DeadlineExceeded"}


def answer(work: int) -> list[int]:
    return [10 * work + index for index in range(WHOLE)]


@dataclass
class Submitted:
    """One submit of a client, until it is answered."""

    work: int
    is_cancelled: bool = False
    fails_of: set[str] = field(default_factory=set)
    """Errors that may be its answer."""
    is_streamed: bool = False
    tokens: list[int] = field(default_factory=list)
    """The tokens that the client has been sent."""


@dataclass
class Running:
    """A request in an engine."""

    work: int
    tokens: list[int]
    is_cancelled: bool = False


class Table(RuleBasedStateMachine):
    """Two engines, and effects that are carried out after one event or after several."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.outbox = Outbox()
        counts = ModelCounts(CONFIG.model)
        self.pool = EnginePool(KEY, "/", [EngineSetup(CONFIG)] * 2, 1.0, self.outbox, counts)
        for slot in self.pool.slots:
            slot.state, slot.info = State.READY, msgspec.structs.replace(INFO, max_num_seqs=1)
        self.kept = KeptResults(2000, 60)
        self.table = Requests(KEY, self.pool, SETTINGS, self.outbox, self.kept, JobCounts(), counts)
        self.engines: list[dict[str, Running]] = [{}, {}]
        self.owed: dict[int, dict[str, deque[Submitted]]] = {}
        for client in (1, 2, 3):
            self.join(client)

    @initialize(bound=st.sampled_from([0, 2000]))
    def keep(self, bound: int) -> None:
        self.kept._max_bytes = bound

    def join(self, client: int) -> None:
        self.table.credits.join(client)
        self.owed[client] = {}

    # ── clients ──

    @rule(event=st.sampled_from(EVENTS), which=ANY, how=ANY)
    def happen(self, event: str, which: int, how: int) -> None:
        """One rule for all: Hypothesis leaves some rules out of each run, and here each needs the others."""
        self.now += 0.01
        getattr(self, event)(which, how)

    def submit(self, which: int, how: int) -> None:
        """A client sends an id again only when it has cancelled it, or has its answer. It may have tokens of another
        manager. One in four asks for other work under the id.
        """
        client, name, work = 1 + which % 3, NAMES[which // 3 % 3], int(how % 4 == 0)
        stream = bool(how // 4 % 2)
        line = self.owed[client].setdefault(name, deque())
        if line and not line[-1].is_cancelled:
            return
        sent = self.request(name, work, stream, how // 8 % WHOLE)
        mine = Submitted(work, is_streamed=stream, tokens=list(sent.output_token_ids))
        entry = self.table.entries.get(name)
        if entry is not None and not entry.is_same_work(sent):
            mine.fails_of.add("InvalidRequest")
        line.append(mine)
        self.table.submit(client, sent, self.now)

    def request(self, name: str, work: int, stream: bool, known: int) -> Request:
        made = request(name, work, deadline=5.0 if name == "d" else None)
        return msgspec.structs.replace(made, stream=stream, output_token_ids=answer(work)[:known])

    def cancel(self, which: int, _how: int) -> None:
        """One that is cancelled already at times: the client does not know of all answers yet."""
        client, name = self.outstanding(which)
        if line := self.owed[client].get(name):
            line[-1].is_cancelled = True
        self.table.cancel(client, name, self.now)

    def outstanding(self, which: int) -> tuple[int, str]:
        pairs = [(client, name) for client, lines in self.owed.items() for name, line in lines.items() if line]
        return pairs[which % len(pairs)] if pairs else (1, "a")

    def cancel_and_submit(self, which: int, how: int) -> None:
        client, name = self.outstanding(which)
        self.cancel(which, how)
        self.submit(client - 1 + 3 * NAMES.index(name), how)

    def leave(self, which: int, _how: int, *, died: bool = True) -> None:
        self.carry_out()  # what it has been sent before
        self.table.leave(1 + which % 3, self.now + SETTINGS.orphan_grace if died else None)
        self.join(1 + which % 3)

    def close(self, which: int, how: int) -> None:
        self.leave(which, how, died=False)

    def keep_tokens(self, which: int, _how: int) -> None:
        """A client gave a sign of life: it has been sent all tokens of what runs for it."""
        client = 1 + which % 3
        self.carry_out()
        self.table.send_to_keep(client)
        self.carry_out()
        for name, line in self.owed[client].items():
            entry = self.table.entries.get(name)
            if entry is None or entry.engine is None or len(line) != 1 or client not in entry.receivers:
                continue
            if line[0].is_streamed or not entry.request.stream:  # else the engine may go on in other tokens
                assert line[0].tokens[: len(entry.tokens)] == entry.tokens, "tokens would be lost with the manager"

    # ── engines ──

    def fail(self, which: int, how: int) -> None:
        self.step(which, how, fails=True)

    def finish(self, which: int, how: int) -> None:
        for _ in range(WHOLE):
            self.step(which, how)

    def step(self, which: int, how: int, *, fails: bool = False) -> None:
        index = how % 2 if self.engines[how % 2] else 1 - how % 2
        engine = self.engines[index]
        if not engine:
            return
        name = sorted(engine)[which % len(engine)]
        running = engine[name]
        if fails:
            del engine[name]
            self.may_fail(name, "NonFiniteLogits")
            report = StepReport(failures=[Failure(name, NonFiniteLogits("NaN").info())])
        elif running.is_cancelled:
            del engine[name]
            report = StepReport(outputs=[output(name, running.tokens, FinishReason.ABORT)])
        else:
            running.tokens.append(answer(running.work)[len(running.tokens)])
            report = StepReport(progress={name: running.tokens[-1:]})
            if len(running.tokens) == WHOLE:
                del engine[name]
                report = StepReport(outputs=[output(name, running.tokens)])
        self.table.report(self.pool.slots[index], report, self.now)

    def may_fail(self, name: str, error: str) -> None:
        """The submits that wait for a request of this id."""
        entry = self.table.entries[name]
        for client in entry.receivers:
            self.owed[client][name][-1].fails_of.add(error)

    def die(self, which: int, _how: int) -> None:
        index = which % 2
        self.carry_out()
        for name in self.engines[index]:
            if self.table.entries[name].deaths >= SETTINGS.max_deaths_per_request:
                self.may_fail(name, "EngineKiller")
        self.engines[index].clear()
        slot = self.pool.slots[index]
        slot.deaths_in_row += 1
        self.table.take_back(slot, "killed", self.now)

    # ── time and effects ──

    def wait(self, which: int, _how: int = 0) -> None:
        self.now += (0.5, 3.0, 20.0)[which % 3]
        for entry in self.table.entries.values():
            if entry.is_overdue(self.now) and entry.engine is None:
                self.may_fail(entry.request.request_id, "DeadlineExceeded")
        self.table.tick(self.now)
        self.kept.expire(self.now)

    def drain(self, *_: int) -> None:
        self.table.last_call = self.now

    def end_drain(self, *_: int) -> None:
        self.table.last_call = None

    def carry_out(self, *_: int) -> None:
        self.table.hand_over(self.now)
        self.table.send_progress()
        for effect in self.outbox.drain():
            self.carry_out_one(effect)

    def carry_out_one(self, effect: Effect) -> None:
        match effect:
            case ToEngine(_, Submit(_, requests), index):
                for each in requests:
                    assert all(each.request_id not in engine for engine in self.engines), "it runs already"
                    assert self.table.last_call is None or self.arrived(each) <= self.table.last_call
                    work = each.prompt_token_ids[0]
                    assert each.output_token_ids == answer(work)[: len(each.output_token_ids)]
                    self.engines[index][each.request_id] = Running(work, list(each.output_token_ids))
            case ToEngine(_, Cancel(_, names), index):
                for name in names:
                    if (running := self.engines[index].get(name)) is not None:
                        running.is_cancelled = True
            case ToClient(client, Results(_, outputs, failures)):
                answers: list[Output | Failure] = [*outputs, *failures]
                for answered in answers:
                    self.take(client, answered)
            case ToClient(client, Progress(_, tokens)):
                for new in tokens:
                    line = self.owed[client].get(new.request_id)
                    if line and len(line) == 1 and not line[0].is_cancelled:
                        known = line[0].tokens
                        assert new.offset <= len(known), "tokens have a gap"
                        assert new.offset == len(known) or not line[0].is_streamed, "a stream has tokens twice"
                        known[new.offset :] = new.token_ids
                        assert known == answer(line[0].work)[: len(known)]

    def arrived(self, sent: Request) -> float:
        return self.table.entries[sent.request_id].arrived

    def take(self, client: int, answered: Output | Failure) -> None:
        line = self.owed[client].get(answered.request_id)
        assert line, "answered more often than asked"
        mine = line.popleft()
        if mine.is_cancelled:
            return
        if isinstance(answered, Failure):
            assert answered.error.kind in mine.fails_of, answered
        elif answered.finish_reason is FinishReason.DEADLINE:
            assert answered.token_ids == answer(mine.work)[: len(answered.token_ids)]
        else:
            assert answered.finish_reason is FinishReason.LENGTH, "aborted, and nobody cancelled it"
            assert answered.token_ids == answer(mine.work)

    # ── what holds ──

    @invariant()
    def the_parts_agree(self) -> None:
        self.table.check_integrity(self.owed)
        for name, entry in self.table.entries.items():
            work = entry.request.prompt_token_ids[0]
            assert entry.tokens == answer(work)[: len(entry.tokens)]
            if entry.engine is not None:
                assert self.engines_have(name) or self.is_on_its_way(Submit, name)
            if entry.engine is not None and entry.cancelled:
                running = self.engines[entry.engine].get(name)
                assert (running is not None and running.is_cancelled) or self.is_on_its_way(Cancel, name)

    @invariant()
    def what_came_before_the_last_call_is_work(self) -> None:
        """The model is not unloaded before it is done."""
        last_call = self.table.last_call
        assert self.table.has_work == any(
            entry.engine is not None or last_call is None or entry.arrived <= last_call
            for entry in self.table.entries.values()
        )

    def engines_have(self, name: str) -> bool:
        return any(name in engine for engine in self.engines)

    def is_on_its_way(self, kind: type[Submit | Cancel], name: str) -> bool:
        messages = [effect.message for effect in self.outbox._effects if isinstance(effect, ToEngine)]
        return any(
            name in (each.request_ids if isinstance(each, Cancel) else [one.request_id for one in each.requests])
            for each in messages
            if isinstance(each, kind)
        )

    def teardown(self) -> None:
        """The engines go on, and all who wait are answered."""
        self.end_drain()
        for _ in range(200):
            self.carry_out()
            self.step(0, 0)
        assert not any(line for lines in self.owed.values() for line in lines.values())
        assert all(not self.table.credits.outstanding(client) for client in self.owed)
        self.wait(2)
        for _ in range(20):
            self.carry_out()
            self.step(0, 0)
        assert not self.table.entries
        self.table.check_integrity(self.owed)


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=runs(150), stateful_step_count=50)
