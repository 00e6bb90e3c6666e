"""A router, with clients and engines that only keep accounts, and check them as they go."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from millrace.model_manager.manager.outbox import Effect, Start, Stop, ToClient, ToEngine
from millrace.model_manager.manager.router import Router
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ErrorInfo
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.messages import (
    Cancel,
    CloseModel,
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
    Timings,
)
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.status import ModelInfo

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
        self.router.model(KEY).ready(0, INFO, self.now)
        self.settle()

    def report(self, report: StepReport) -> None:
        self.router.model(KEY).report(0, report, self.now)
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
        self.router.model(KEY).died(0, "killed", hopeless=hopeless, now=self.now)
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
