"""The router under random arrivals, results, deaths, cancellations and departures: every request is answered once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from model_manager.manager.outbox import Effect, Start, Stop, ToClient, ToEngine
from model_manager.manager.router import Router
from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.errors import ErrorInfo, ModelDoesNotFit, NonFiniteLogits
from model_manager.wire.logprobs import Logprobs
from model_manager.wire.messages import (
    Cancel,
    CloseModel,
    Credits,
    Failure,
    FinishReason,
    ModelFailed,
    ModelInfo,
    ModelReady,
    OpenModel,
    Output,
    Request,
    Results,
    StepReport,
    Submit,
    Timings,
)
from model_manager.wire.sampling import SamplingParams
from model_manager.wire.transport import ProtocolError

CONFIG = ModelConfig(backend="fake", max_num_seqs=4)
KEY = CONFIG.key
SETTINGS = ManagerConfig(
    linger=5, orphan_grace=10, idle_timeout=60, results_kept=20, results_kept_mib=0.002, max_restarts=3
)
INFO = ModelInfo(
    name="fake",
    folder="/",
    architecture="fake",
    dtype="float32",
    device="cpu",
    vocab_size=64,
    max_model_len=128,
    max_num_seqs=4,
    num_blocks=8,
    block_size=16,
    eos_token_ids=[],
    load_seconds=0.0,
)


def request(name: str, prompt: int = 0, **params: object) -> Request:
    sampling = SamplingParams.parse({"max_tokens": 9, **params})
    return Request(request_id=name, prompt_token_ids=[prompt], params=sampling, job="job")


def output(name: str, tokens: list[int], reason: FinishReason = FinishReason.LENGTH) -> Output:
    return Output(name, tokens, reason, Timings(0, 0, 0), prompt_tokens=1)


@dataclass
class Engine:
    """What an engine would know."""

    ready: bool = False
    tokens: dict[str, list[int]] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    logprobs: dict[str, Logprobs | None] = field(default_factory=dict)
    """What came with a request's tokens."""


@dataclass
class World:
    """A router, with clients and engines that only keep accounts."""

    now: float = 0.0
    router: Router = field(default_factory=lambda: Router(SETTINGS, 0.0))
    owed: dict[int, Counter[str]] = field(default_factory=dict)
    opened: dict[int, bool] = field(default_factory=dict)
    answers: list[tuple[int, Output | Failure]] = field(default_factory=list)
    failures: list[tuple[int, ErrorInfo]] = field(default_factory=list)
    aborts: Counter[tuple[int, str]] = field(default_factory=Counter)
    limits: dict[int, int] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    engine: Engine | None = None
    starts: int = 0

    # ── clients ──

    def join(self, client: int) -> None:
        self.router.connect(client, observer=False)
        self.owed[client], self.opened[client] = Counter(), False

    def open(self, client: int) -> None:
        self.router.open_model(client, OpenModel(CONFIG, "/"), self.now)
        self.opened[client] = True
        self.settle()

    def submit(self, client: int, *requests: Request) -> None:
        for each in requests:
            self.owed[client][each.request_id] += 1
        self.router.submit(client, Submit(KEY, list(requests)), self.now)
        self.settle()

    def cancel(self, client: int, name: str) -> None:
        self.aborts[client, name] += self.owed[client][name] > 0
        self.router.cancel(client, Cancel(KEY, [name]), self.now)
        self.settle()

    def leave(self, client: int, *, cleanly: bool) -> None:
        if cleanly:
            self.router.close_model(client, CloseModel(KEY), self.now)
        self.router.disconnect(client, self.now)
        del self.owed[client], self.opened[client]
        self.limits.pop(client, None)
        self.settle()

    # ── the engine ──

    def load(self) -> None:
        assert self.engine is not None
        self.engine.ready = True
        self.router.engine_ready(KEY, INFO, self.now)
        self.settle()

    def report(self, report: StepReport) -> None:
        self.router.engine_report(KEY, report, self.now)
        self.settle()

    def finish(self, name: str) -> None:
        assert self.engine is not None
        tokens = self.engine.tokens.pop(name)
        reason = FinishReason.ABORT if name in self.engine.cancelled else FinishReason.LENGTH
        self.engine.cancelled.discard(name)
        self.report(StepReport(outputs=[output(name, [*tokens, 9], reason)]))

    def progress(self, name: str, token: int = 7) -> None:
        assert self.engine is not None
        self.engine.tokens[name].append(token)
        self.report(StepReport(progress={name: [token]}))

    def die(self, *, hopeless: bool = False) -> None:
        assert self.engine is not None
        self.engine = None
        self.router.engine_died(KEY, "killed", hopeless=hopeless, now=self.now)
        self.settle()

    # ── time and effects ──

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.router.tick(self.now)
        self.settle()

    def settle(self) -> None:
        for effect in self.router.effects(self.now):
            self._carry_out(effect)
        self.router.check_integrity()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Start():
                assert self.engine is None, "a second engine"
                self.engine = Engine()
                self.starts += 1
            case Stop():
                self.engine = None
            case ToEngine(_, Submit(_, requests)):
                self._engine_takes(requests)
            case ToEngine(_, Cancel(_, names)):
                assert self.engine is not None
                self.engine.cancelled |= set(names) & set(self.engine.tokens)
            case ToClient(client, message) if client in self.owed:
                self._client_takes(client, message)

    def _engine_takes(self, requests: list[Request]) -> None:
        assert self.engine is not None
        assert self.engine.ready, "requests before the model is loaded"
        for each in requests:
            assert each.request_id not in self.engine.tokens, "a request twice in one engine"
            self.engine.tokens[each.request_id] = list(each.output_token_ids)
            self.engine.logprobs[each.request_id] = each.output_logprobs

    def _client_takes(self, client: int, message: object) -> None:
        match message:
            case Results(_, outputs, failures):
                answers: list[Output | Failure] = [*outputs, *failures]
                for answer in answers:
                    self.owed[client][answer.request_id] -= 1
                    assert self.owed[client][answer.request_id] >= 0, "answered more often than asked"
                    self.answers.append((client, answer))
                    self._check_abort(client, answer)
            case ModelFailed(_, error):
                self.owed[client].clear()
                self.opened[client] = False
                self.failures.append((client, error))
            case Credits(_, limit):
                assert limit >= 1
                self.limits[client] = limit
            case ModelReady():
                self.ready.add(client)

    def _check_abort(self, client: int, answer: Output | Failure) -> None:
        if isinstance(answer, Output) and answer.finish_reason is FinishReason.ABORT:
            self.aborts[client, answer.request_id] -= 1
            assert self.aborts[client, answer.request_id] >= 0, "aborted, and not by this client"

    def finish_all(self) -> None:
        for _ in range(1000):
            if self.engine is None:
                break
            if not self.engine.ready:
                self.load()
            elif self.engine.tokens:
                self.finish(next(iter(self.engine.tokens)))
            else:
                break


def world(*clients: int) -> World:
    made = World()
    for client in clients:
        made.join(client)
        made.open(client)
    made.load()
    return made


def names(answers: list[tuple[int, Output | Failure]]) -> list[tuple[int, str]]:
    return [(client, answer.request_id) for client, answer in answers]


def test_the_first_open_starts_one_engine_and_everybody_is_told_when_it_is_ready() -> None:
    made = world(1, 2)
    assert made.starts == 1
    assert made.ready == {1, 2}


def test_a_second_client_attaches_to_a_request_that_runs() -> None:
    made = world(1, 2)
    made.submit(1, request("a"))
    made.submit(2, request("a"))
    made.finish("a")
    assert names(made.answers) == [(1, "a"), (2, "a")]


def test_a_retry_is_answered_from_what_is_kept() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.finish("a")
    made.submit(1, request("a"))
    assert names(made.answers) == [(1, "a"), (1, "a")]
    assert made.engine is not None
    assert not made.engine.tokens


def test_an_id_that_stands_for_another_prompt_fails_and_the_first_goes_on() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.submit(1, request("a", prompt=5))
    made.finish("a")
    kinds = [type(answer).__name__ for _, answer in made.answers]
    assert kinds == ["Failure", "Output"]


def test_a_kept_result_is_not_the_answer_to_another_prompt() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.finish("a")
    made.submit(1, request("a", prompt=5))
    assert made.engine is not None
    assert "a" in made.engine.tokens


def test_a_new_engine_goes_on_with_the_tokens_there_are() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.progress("a", 3)
    made.progress("a", 4)
    made.die()
    made.load()
    assert made.engine is not None
    assert made.engine.tokens == {"a": [3, 4]}
    made.finish("a")
    assert [answer.token_ids for _, answer in made.answers if isinstance(answer, Output)] == [[3, 4, 9]]


def test_a_new_engine_gets_the_log_probabilities_of_those_tokens() -> None:
    made = world(1)
    made.submit(1, request("a"))
    parts = [Logprobs([-0.5], [True], [[3]], [[-0.5]]), Logprobs([-1.5], [False], [[5]], [[-0.25]])]
    for token, logprobs in zip((3, 4), parts, strict=True):
        made.report(StepReport(progress={"a": [token]}, logprobs={"a": logprobs}))
    made.die()
    made.load()
    assert made.engine is not None
    assert made.engine.tokens == {"a": [3, 4]}
    assert made.engine.logprobs == {"a": Logprobs([-0.5, -1.5], [True, False], [[3], [5]], [[-0.5], [-0.25]])}


def test_a_model_is_given_up_after_too_many_deaths_in_a_row() -> None:
    made = world(1)
    for _ in range(SETTINGS.max_restarts):
        made.die()
    assert not made.failures
    made.die()
    assert [error.kind for _, error in made.failures] == ["EngineLost"]


def test_a_death_while_loading_that_another_engine_would_die_too_fails_the_model_at_once() -> None:
    made = World()
    made.join(1)
    made.open(1)
    made.die(hopeless=True)
    assert [error.kind for _, error in made.failures] == ["ModelLoadFailed"]


def test_what_no_engine_has_ends_when_its_time_is_up_with_what_it_has() -> None:
    made = world(1)
    for name in ("begun", "new", "patient"):
        made.submit(1, request(name, deadline=None if name == "patient" else 10.0))
    made.progress("begun", 3)
    made.die()
    made.pass_time(9.9)
    assert not made.answers
    made.pass_time(0.2)
    late, begun = sorted((answer for _, answer in made.answers), key=lambda answer: type(answer).__name__)
    assert isinstance(late, Failure)
    assert (late.request_id, late.error.kind) == ("new", "DeadlineExceeded")
    assert isinstance(begun, Output)
    assert (begun.token_ids, begun.finish_reason) == ([3], FinishReason.DEADLINE)
    made.load()
    assert made.engine is not None
    assert made.engine.tokens == {"patient": []}


def test_what_ends_without_an_engine_brings_its_tokens_log_probabilities() -> None:
    made = world(1)
    made.submit(1, request("a", deadline=10.0, logprobs=0))
    found = Logprobs(logprobs=[-0.5], greedy=[True])
    made.report(StepReport(progress={"a": [3]}, logprobs={"a": found}))
    made.die()
    made.pass_time(11.0)
    ((_, answer),) = made.answers
    assert isinstance(answer, Output)
    assert (answer.token_ids, answer.logprobs) == ([3], found)


def test_what_an_engine_has_it_ends_itself() -> None:
    made = world(1)
    made.submit(1, request("a", deadline=10.0))
    made.pass_time(11.0)
    assert not made.answers
    made.report(StepReport(outputs=[output("a", [4], FinishReason.DEADLINE)]))
    assert names(made.answers) == [(1, "a")]


def test_an_engine_is_given_the_most_urgent_first() -> None:
    made = World()
    made.join(1)
    made.open(1)
    made.submit(1, *(request(str(n), priority=-n) for n in range(12)))
    made.load()
    assert made.engine is not None
    assert sorted(made.engine.tokens, key=int) == [str(n) for n in range(4, 12)]


def test_a_later_open_tries_a_failed_model_again() -> None:
    made = World()
    made.join(1)
    made.open(1)
    made.router.engine_failed(KEY, ModelDoesNotFit("no").info())
    made.settle()
    made.open(1)
    made.load()
    made.submit(1, request("a"))
    made.finish("a")
    assert made.starts == 2
    assert names(made.answers) == [(1, "a")]


def test_a_submit_that_crosses_with_the_news_of_failure_gets_no_second_answer() -> None:
    made = world(1)
    made.router.stop_model(KEY)
    made.router.submit(1, Submit(KEY, [request("a")]), made.now)
    made.settle()
    assert not made.answers
    assert len(made.failures) == 1


def test_a_request_to_a_model_that_was_not_opened_is_a_breach_of_protocol() -> None:
    made = World()
    made.join(1)
    with pytest.raises(ProtocolError):
        made.router.submit(1, Submit(KEY, [request("a")]), 0.0)


def test_a_request_that_kills_its_engine_fails_alone() -> None:
    made = world(1)
    made.submit(1, *(request(name) for name in ("poison", "b", "c", "d")))
    for _ in range(20):
        if made.engine is None or not made.engine.ready:
            made.load()
        assert made.engine is not None
        if not made.engine.tokens:
            break
        if "poison" in made.engine.tokens:
            made.die()
        else:
            made.finish(next(iter(made.engine.tokens)))
    answers = {answer.request_id: answer for _, answer in made.answers}
    poison = answers.pop("poison")
    assert isinstance(poison, Failure)
    assert poison.error.kind == "EngineKiller"
    assert all(isinstance(answer, Output) for answer in answers.values())
    assert len(answers) == 3


def test_requests_that_come_further_on_each_engine_are_not_suspected() -> None:
    made = world(1)
    made.submit(1, request("a"), request("b"))
    for _ in range(SETTINGS.max_restarts):
        made.progress("a")
        made.progress("b")
        made.die()
        made.load()
        assert made.engine is not None
        assert set(made.engine.tokens) == {"a", "b"}


def test_the_requests_of_a_dead_client_wait_for_a_retry_and_are_cancelled_then() -> None:
    made = world(1, 2)
    made.submit(1, request("a"), request("b"))
    made.leave(1, cleanly=False)
    made.pass_time(SETTINGS.orphan_grace - 1)
    made.submit(2, request("a"))
    made.pass_time(2)
    assert made.engine is not None
    assert made.engine.cancelled == {"b"}


def test_a_client_that_closes_cancels_at_once() -> None:
    made = world(1, 2)
    made.submit(1, request("a"), request("b"))
    made.submit(2, request("b"))
    made.leave(1, cleanly=True)
    assert made.engine is not None
    assert made.engine.cancelled == {"a"}


def test_cancelling_answers_at_once_and_a_retry_meanwhile_goes_on() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.progress("a", 3)
    made.cancel(1, "a")
    made.submit(1, request("a"))
    made.finish("a")  # the engine's end of the cancelled one
    made.finish("a")
    reasons = [answer.finish_reason for _, answer in made.answers if isinstance(answer, Output)]
    assert reasons == [FinishReason.ABORT, FinishReason.LENGTH]


def test_a_cancelled_request_is_not_given_to_the_next_engine() -> None:
    made = world(1)
    made.submit(1, request("a"), request("b"))
    made.cancel(1, "a")
    made.die()
    made.load()
    assert made.engine is not None
    assert set(made.engine.tokens) == {"b"}


def test_an_idle_model_is_unloaded_and_comes_back_with_the_next_request() -> None:
    made = world(1)
    made.pass_time(SETTINGS.idle_timeout + 1)
    assert made.engine is None
    made.submit(1, request("a"))
    made.load()
    made.finish("a")
    assert names(made.answers) == [(1, "a")]


def test_the_manager_is_done_when_its_last_client_has_been_gone_for_a_while() -> None:
    made = world(1)
    made.leave(1, cleanly=True)
    made.pass_time(SETTINGS.linger - 1)
    assert not made.router.is_done(made.now)
    assert made.engine is not None
    made.pass_time(2)
    assert made.router.is_done(made.now)
    assert made.engine is None


def test_an_observer_keeps_nothing_up() -> None:
    made = world(1)
    made.router.connect(9, observer=True)
    made.leave(1, cleanly=True)
    made.pass_time(SETTINGS.linger + 1)
    assert made.router.is_done(made.now)


def test_one_client_has_all_credits_and_two_that_work_share_them() -> None:
    made = world(1)
    assert made.limits == {1: 8}
    made.join(2)
    made.open(2)
    made.submit(1, *(request(f"a{index}") for index in range(8)))
    made.submit(2, *(request(f"b{index}") for index in range(2)))
    made.pass_time(0.1)
    assert made.limits == {1: 4, 2: 4}


def test_status_counts_each_request_once_for_its_job() -> None:
    made = world(1, 2)
    made.submit(1, request("a"))
    made.submit(2, request("a"))
    made.finish("a")
    (job,) = made.router.jobs()
    assert (job.job, job.finished, job.generated_tokens) == ("job", 1, 1)


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
            self.world.router.engine_failed(KEY, ModelDoesNotFit("no").info())
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
TestTurmoil.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
