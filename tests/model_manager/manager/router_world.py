"""A router, with clients and engines that only keep accounts, and check them as they go."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from millrace.model_manager.manager.outbox import Effect, Start, Stop, ToClient, ToEngine
from millrace.model_manager.manager.router import Router
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.engine_messages import StepReport
from millrace.model_manager.wire.errors import ErrorInfo, ModelDoesNotFit
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.messages import (
    Cancel,
    CloseModel,
    Credits,
    ModelFailed,
    ModelReady,
    OpenModel,
    Results,
    Submit,
)
from millrace.model_manager.wire.request import Failure, FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings
from tests.model_manager.model_infos import model_info

CONFIG = ModelConfig(backend="fake", max_num_seqs=4)
KEY = CONFIG.key
SETTINGS = ManagerConfig(
    linger=5, orphan_grace=10, idle_timeout=60, results_kept=20, results_kept_mib=0.002, max_restarts=3
)
INFO = model_info()


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

    num_engines: int = 1
    now: float = 0.0
    router: Router = field(default_factory=lambda: Router(SETTINGS, 0.0, cores=6))
    engines: dict[int, Engine] = field(default_factory=dict)
    owed: dict[int, Counter[str]] = field(default_factory=dict)
    opened: dict[int, bool] = field(default_factory=dict)
    answers: list[tuple[int, Output | Failure]] = field(default_factory=list)
    failures: list[tuple[int, ErrorInfo]] = field(default_factory=list)
    aborts: Counter[tuple[int, str]] = field(default_factory=Counter)
    limits: dict[int, int] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    starts: int = 0

    @property
    def engine(self) -> Engine:
        """The engine of a world that has one."""
        (engine,) = self.engines.values()
        return engine

    # ── clients ──

    def join(self, client: int) -> None:
        self.router.connect(client, observer=False)
        self.owed[client], self.opened[client] = Counter(), False

    def open(self, client: int, grace: float = SETTINGS.orphan_grace, weight: float = 1.0) -> None:
        config = msgspec.structs.replace(CONFIG, num_engines=self.num_engines)
        asked = ManagerConfig(orphan_grace=grace, weight=weight)
        self.router.open_model(client, OpenModel(config, "/", asked), self.now)
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

    # ── engines: each by its index ──

    def load(self, *which: int) -> None:
        for index in which or (0,):
            self.engines[index].ready = True
            self.router.model(KEY).ready(index, INFO, self.now)
            self.settle()

    def cannot_load(self, index: int = 0) -> None:
        self.router.model(KEY).cannot_load(index, ModelDoesNotFit("no").info(), self.now)
        self.settle()

    def report(self, report: StepReport, index: int = 0) -> None:
        self.router.model(KEY).report(index, report, self.now)
        self.settle()

    def finish(self, name: str, index: int = 0) -> None:
        engine = self.engines[index]
        tokens = engine.tokens.pop(name)
        reason = FinishReason.ABORT if name in engine.cancelled else FinishReason.LENGTH
        engine.cancelled.discard(name)
        self.report(StepReport(outputs=[output(name, [*tokens, 9], reason)]), index)

    def progress(self, name: str, token: int = 7, index: int = 0) -> None:
        self.engines[index].tokens[name].append(token)
        self.report(StepReport(progress={name: [token]}), index)

    def die(self, index: int = 0, *, load_failed: bool = False) -> None:
        del self.engines[index]
        self.router.model(KEY).died(index, "killed", load_failed=load_failed, now=self.now)
        self.settle()

    def held(self, index: int) -> set[str]:
        return set(self.engines[index].tokens)

    def holder(self, name: str) -> int:
        """The engine that has this request."""
        (index,) = [index for index in self.engines if name in self.held(index)]
        return index

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
            case Start(_, _, _, index):
                assert index not in self.engines, "a second engine in one place"
                assert index < self.num_engines
                self.engines[index] = Engine()
                self.starts += 1
            case Stop(_, index):
                del self.engines[index]
            case ToEngine(_, Submit(_, requests), index):
                self._engine_takes(index, requests)
            case ToEngine(_, Cancel(_, names), index):
                self.engines[index].cancelled |= set(names) & self.held(index)
            case ToClient(client, message) if client in self.owed:
                self._client_takes(client, message)

    def _engine_takes(self, index: int, requests: list[Request]) -> None:
        engine = self.engines[index]
        assert engine.ready, "requests before the model is loaded"
        for each in requests:
            assert all(each.request_id not in other.tokens for other in self.engines.values()), "it runs already"
            engine.tokens[each.request_id] = list(each.output_token_ids)
            engine.logprobs[each.request_id] = each.output_logprobs

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
        """Engines load and finish what they are given, until none has anything to do."""
        for _ in range(1000):
            for index, engine in list(self.engines.items()):
                if not engine.ready:
                    self.load(index)
                elif engine.tokens:
                    self.finish(next(iter(engine.tokens)), index)
            if all(engine.ready and not engine.tokens for engine in self.engines.values()):
                break


def opened(*clients: int, num_engines: int = 1) -> World:
    """Clients that have asked for the model, which no engine has loaded yet."""
    made = World(num_engines)
    for client in clients:
        made.join(client)
        made.open(client)
    return made


def world(*clients: int, num_engines: int = 1) -> World:
    made = opened(*clients, num_engines=num_engines)
    made.load(*range(num_engines))
    return made


def names(answers: list[tuple[int, Output | Failure]]) -> list[tuple[int, str]]:
    return [(client, answer.request_id) for client, answer in answers]
