"""A session whose manager says what it likes, when it likes, and dies: every future is completed once, and rightly."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.model_manager.client import attempts
from millrace.model_manager.client.deltas import Delta
from millrace.model_manager.client.session import WouldWait
from millrace.model_manager.wire.config import ManagerConfig
from millrace.model_manager.wire.errors import (
    EngineLost,
    InvalidRequest,
    ManagerUnavailable,
    NonFiniteLogits,
    RequestAborted,
)
from millrace.model_manager.wire.messages import (
    PROTOCOL,
    Credits,
    Hello,
    Message,
    ModelFailed,
    ModelReady,
    Pong,
    Progress,
    Refused,
    Results,
    Submit,
    Welcome,
)
from millrace.model_manager.wire.request import Failure, FinishReason, NewTokens, Request
from millrace.model_manager.wire.transport import ConnectionLost, encode
from tests.model_manager.client.turmoil_manager import CONFIG, WHOLE, Manager, Owed, answer, output, request
from tests.model_manager.memory_pipes import ClientSocket, Elections, Waiting, receiving_thread, watched_session
from tests.model_manager.model_infos import model_info
from tests.searches import runs

SETTINGS = ManagerConfig(heartbeat=1e6, hang_timeout=1e6)
ANY = st.integers(0, 2**16)
EVENTS = (
    *8 * ("take",),
    *5 * ("send_at_once", "answer"),
    *4 * ("cancel_and_send",),
    *3 * ("attach", "ready", "progress", "answer_some"),
    *2 * ("send", "credits", "die"),
    *("connect", "fail", "cancel", "cancel_future", "pong", "ping", "fail_model", "refuse"),
)


@dataclass
class Asked:
    """One call of `send`."""

    request: Request
    future: Future[Any]
    deltas: list[Delta] = field(default_factory=list)
    may_end_by: set[type[BaseException]] = field(default_factory=set)

    def is_other_work(self, other: Request) -> bool:
        mine = self.request
        return mine.request_id == other.request_id and mine.prompt_token_ids != other.prompt_token_ids


class Turmoil(RuleBasedStateMachine):
    """One session, one caller that may wait, and one manager after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = mock.patch.multiple(attempts, _LONGEST_PAUSE=0.0)
        self.patch.start()
        self.waiting = Waiting()
        self.elections = Elections(self.waiting)
        self.session = watched_session(self.waiting, CONFIG, self.elections, SETTINGS, None)
        self.manager: Manager | None = None
        self.asked: list[Asked] = []
        self.callers: list[threading.Thread] = []
        self.rest()

    def rest(self) -> None:
        self.waiting.until_all_do([receiving_thread(self.session), *self.callers])

    @initialize(is_open=st.integers(0, 3), limit=st.integers(0, 1))
    def begin(self, is_open: int, limit: int) -> None:
        """Mostly with a model that is ready, and credits for most that is asked."""
        if is_open:
            self.attach(3 + limit)

    def attach(self, which: int, how: int = 0) -> None:
        self.connect()
        self.take()
        self.take()
        self.ready(which, how)

    def answer_some(self, which: int, how: int) -> None:
        for _ in range(2 + which % 8):
            self.take()
            self.answer(which, how)

    # ── callers ──

    def ask(self, number: int, *, other: bool, stream: bool) -> Asked:
        asked = Asked(request(number, other=other, stream=stream), Future())
        self.asked.append(asked)
        return asked

    def send_it(self, asked: Asked, *, may_wait: bool) -> None:
        """Ask; what `send` raises is what the future fails with."""
        on_delta = asked.deltas.append if asked.request.stream else None
        send = self.session.send if may_wait else self.session.send_at_once
        try:
            future = send(asked.request, on_delta)
        except BaseException as error:
            asked.future.set_exception(error)
        else:
            asked.future = future

    @rule(event=st.sampled_from(EVENTS), which=ANY, how=ANY)
    def happen(self, event: str, which: int, how: int) -> None:
        """One rule for all: Hypothesis leaves some rules out of each run, and here each needs the others."""
        getattr(self, event)(which, how)

    def send_at_once(self, which: int, how: int) -> None:
        """One in four asks for other work under an id."""
        asked = self.ask(which % 6, other=how % 4 == 1, stream=bool(how // 4 % 2))
        if any(each.is_other_work(asked.request) for each in self.asked if not each.future.done()):
            asked.may_end_by.add(InvalidRequest)
        asked.may_end_by.add(WouldWait)
        limit, in_use = self.session._limit, self.session._ledger.in_use
        self.send_it(asked, may_wait=False)
        assert self.session._ledger.in_use == in_use or in_use < limit, "sent without a credit"
        self.session.flush_at_once()
        self.rest()

    def send(self, which: int, how: int) -> None:
        """One caller at a time waits for a credit."""
        if not self.is_waiting():
            asked = self.ask(6 + which % 4, other=False, stream=bool(how % 2))
            caller = threading.Thread(target=self.send_it, args=(asked,), kwargs={"may_wait": True})
            self.callers = [caller]
            caller.start()
            self.rest()

    def is_waiting(self) -> bool:
        return any(each.is_alive() for each in self.callers)

    def cancel(self, which: int, _how: int) -> None:
        name = f"r{which % 10}"
        for each in self.asked:
            if each.request.request_id == name:
                each.may_end_by.add(RequestAborted)
        self.session.cancel(name)
        self.rest()

    def cancel_and_send(self, which: int, how: int) -> None:
        numbers = [int(each.request.request_id[1:]) for each in self.asked if not each.future.done()]
        if numbers:
            number = numbers[which % len(numbers)]
            self.cancel(number, how)
            self.send_at_once(number, how)

    def cancel_future(self, which: int, _how: int) -> None:
        open_ones = [each for each in self.asked if not each.future.done()]
        if open_ones and not self.is_waiting():
            open_ones[which % len(open_ones)].future.cancel()
            self.rest()

    def all_may_end_by(self, error: type[BaseException]) -> None:
        for each in self.asked:
            if not each.future.done():
                each.may_end_by.add(error)

    # ── the manager ──

    def connect(self, *_: int) -> None:
        if self.elections.is_wanted:
            self.manager = Manager(ClientSocket(self.waiting))
            self.elections.give(self.manager.sock)
            self.rest()

    def say(self, message: Message) -> None:
        assert self.manager is not None
        self.manager.sock.feed(encode(message))
        self.rest()

    def take(self, *_: int) -> None:
        """The manager gets the client's next message."""
        if self.manager is not None and (messages := self.manager.sock.messages()):
            self.manager.sock.sent.popleft()
            self.manager.take(messages[0])
            if isinstance(messages[0], Hello):
                self.say(Welcome(PROTOCOL, 1, SETTINGS))

    def ready(self, which: int, how: int) -> None:
        if self.manager is not None and self.manager.is_opened and not self.manager.is_ready:
            self.manager.is_ready = True
            self.say(ModelReady(CONFIG.key, model_info(), []))
            self.credits(which, how)

    def credits(self, which: int, _how: int) -> None:
        if self.manager is not None and self.manager.is_opened:
            self.say(Credits(CONFIG.key, (0, 1, 2, 4, 8)[which % 5]))

    def owed(self, which: int) -> Owed | None:
        """The manager answers the submits of one id in their order."""
        if self.manager is None or not self.manager.owed:
            return None
        name = self.manager.owed[which % len(self.manager.owed)].request.request_id
        return next(each for each in self.manager.owed if each.request.request_id == name)

    def progress(self, which: int, how: int) -> None:
        """Tokens of a stream, or to be kept; some of them may have been said before."""
        owed = self.owed(which)
        if owed is not None and len(owed.tokens) < WHOLE - 1 and not owed.is_cancelled:
            offset = max(0, len(owed.tokens) - how % 3)
            owed.tokens.append(answer(owed.request.prompt_token_ids)[len(owed.tokens)])
            self.say(Progress(CONFIG.key, [NewTokens(owed.request.request_id, offset, owed.tokens[offset:])]))

    def answer(self, which: int, how: int, *, fails: bool = False) -> None:
        """A cancelled one is answered too: as if it had been finished before, or as aborted."""
        owed = self.owed(which)
        if owed is None or self.manager is None:
            return
        self.manager.owed.remove(owed)
        name = owed.request.request_id
        if fails:
            self.may_fail(name, NonFiniteLogits)
            self.say(Results(CONFIG.key, failures=[Failure(name, NonFiniteLogits("NaN").info())]))
        elif owed.is_cancelled and how % 2:
            self.say(Results(CONFIG.key, outputs=[output(name, owed.tokens, FinishReason.ABORT)]))
        else:
            whole = answer(owed.request.prompt_token_ids)
            self.say(Results(CONFIG.key, outputs=[output(name, whole, FinishReason.LENGTH)]))

    def fail(self, which: int, how: int) -> None:
        self.answer(which, how, fails=True)

    def may_fail(self, name: str, error: type[BaseException]) -> None:
        for each in self.asked:
            if each.request.request_id == name and not each.future.done():
                each.may_end_by.add(error)

    def pong(self, which: int, how: int) -> None:
        if self.manager is not None and self.manager.is_ready:
            self.say(Pong({f"r{which % 10}": 1 + how % 9}))

    def ping(self, *_: int) -> None:
        if (link := self.session._link) is not None:
            link.check(1e6)

    def fail_model(self, *_: int) -> None:
        """Nothing that was asked for before gets another answer; later requests may."""
        if self.manager is not None and self.manager.is_opened:
            self.all_may_end_by(EngineLost)
            self.say(ModelFailed(CONFIG.key, EngineLost("it died").info()))
            self.manager = None
            assert all(each.future.done() for each in self.asked)

    def refuse(self, *_: int) -> None:
        if self.manager is not None and not self.manager.said_hello:
            self.losing()
            self.say(Refused(ConnectionLost("it is ending").info()))
            self.manager = None

    def die(self, which: int, how: int) -> None:
        """The manager dies in the middle of a message, or after bytes that are no message."""
        if self.manager is not None:
            self.losing()
            frame = encode(Credits(CONFIG.key, 4))
            self.manager.sock.feed(frame[: which % len(frame)] if how % 2 else b"\x00\x00\x00\x01\xc1")
            self.manager.sock.end()
            self.manager = None
            self.rest()

    def losing(self) -> None:
        if self.session._attempts._lost_in_row >= SETTINGS.max_manager_losses:
            self.all_may_end_by(ManagerUnavailable)

    # ── what holds ──

    @invariant()
    def each_future_has_the_right_end(self) -> None:
        for each in self.asked:
            if not each.future.done() or each.future.cancelled():
                continue
            if (error := each.future.exception()) is not None:
                assert type(error) in each.may_end_by, repr(error)
                continue
            result = each.future.result()
            assert result.token_ids == answer(each.request.prompt_token_ids)
            if each.request.stream:
                assert [token for delta in each.deltas for token in delta.token_ids] == result.token_ids

    @invariant()
    def credits_are_what_the_manager_owes(self) -> None:
        if self.manager is not None and self.manager.is_ready:
            going = sum(len(each.requests) for each in self.manager.sock.messages() if isinstance(each, Submit))
            assert self.session._ledger.in_use == going + len(self.manager.owed)

    @invariant()
    def each_is_outstanding_once(self) -> None:
        open_ones = Counter(each.request.request_id for each in self.asked if not each.future.done())
        ledger = self.session._ledger._pending
        waited_for = Counter({name: len(pending.waiters) for name, pending in ledger.items()})
        waiting = Counter(request.request_id for request in self.session._waits.values())
        assert +(waited_for + waiting) == open_ones

    def teardown(self) -> None:
        """A manager that lives answers all."""
        try:
            self.end()
        finally:
            self.session.close()
            self.rest()
            self.patch.stop()
        assert all(each.future.done() for each in self.asked)

    def end(self) -> None:
        for _ in range(400):
            if self.elections.is_wanted:
                self.connect()
            if self.manager is None:
                break
            while self.manager.sock.sent:
                self.take()
            if self.manager.is_opened and not self.manager.is_ready:
                self.ready(4, 0)
            elif self.manager.owed:
                self.answer(0, 0)
            elif self.session._limit == 0:
                self.credits(4, 0)
            else:
                break
        assert all(each.future.done() for each in self.asked)
        self.each_future_has_the_right_end()
        assert self.manager is None or self.session._ledger.in_use == 0


TestTurmoil = Turmoil.TestCase
TestTurmoil.settings = settings(max_examples=runs(250), stateful_step_count=50)
