"""A client, a manager and an engine, each as it is in its process, but that a test delivers its messages.

Real are the sessions with their threads, links and ledgers, the manager's server, router and models, and the engines'
loops over the fake engine. In memory are the sockets, the election, the processes of engines, and the clock.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from millrace.model_manager.client.deltas import Delta
from millrace.model_manager.client.generation import answer_of
from millrace.model_manager.client.session import Session, WouldWait
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.engine.fake import FakeEngine
from millrace.model_manager.engine.process import EngineLoop
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.manager import server
from millrace.model_manager.manager.model import Model
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.engine_messages import CacheResized, EngineReady, ResizeCache, StepReport
from millrace.model_manager.wire.messages import Message, Submit
from millrace.model_manager.wire.request import Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.memory_pipes import (
    ClientSocket,
    Elections,
    ManagerWriter,
    Waiting,
    receiving_thread,
    watched_session,
)

GIB = 2**30
FOLDER = resolve(EMBEDDED_MODEL).absolute()
MAX_NUM_SEQS = 2
NEVER = 1e6
"""Seconds: signs of life come when the test asks for them."""
_STEP_SECONDS = 0.06
"""New tokens are reported after some steps, and wait after others."""
_TURNS = 8
"""Passes of the manager's event loop in which whatever one event sets off is done."""


def settings(**fields: Any) -> ManagerConfig:
    unlosable: dict[str, Any] = {"heartbeat": NEVER, "hang_timeout": NEVER, "max_manager_losses": 10**9}
    return ManagerConfig(memory_gib=3.0, **unlosable, **fields)


def config(revision: str, num_engines: int) -> ModelConfig:
    return ModelConfig(
        model=EMBEDDED_MODEL, revision=revision, backend="fake", max_num_seqs=MAX_NUM_SEQS, num_engines=num_engines
    )


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(FOLDER)


@cache
def _parts() -> tuple[Any, StopRules]:
    loaded = FakeEngine.load(config("a", 1), FOLDER)
    return loaded.info, StopRules.load(FOLDER, loaded.info.eos_token_ids)


def fake_engine(now: Callable[[], float], cache_gib: float | None = None) -> FakeEngine:
    info, rules = _parts()
    return FakeEngine(msgspec.structs.replace(info, cache_bytes=int((cache_gib or 2) * GIB)), rules, clock=now)


def request(number: int, *, stream: bool = False) -> Request:
    """Requests with the same number ask for the same work. Every fifth one cannot run."""
    prompt = [10**6] if number % 5 == 4 else [number + 1, 2]
    params = SamplingParams(
        max_tokens=1 + number % 6, priority=-int(number == 7), logprobs=0 if number % 3 == 1 else None
    )
    return Request(f"r{number}", prompt, params, job="job", stream=stream)


def is_invalid(number: int) -> bool:
    return number % 5 == 4


@cache
def expected(number: int) -> Output:
    """The answer of an engine that nothing disturbs, as a client gives it."""
    engine = fake_engine(lambda: 0.0)
    engine.add(request(number))
    while not (outputs := engine.step().outputs):
        pass
    return answer_of(outputs[0], request(number), tokenizer(), 0.0)


# ── engines ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class EngineSide:
    """An inference process: its loop, and what is on its way to and from the manager."""

    def __init__(self, now: Callable[[], float], cache_gib: float | None) -> None:
        self.inbox: deque[Message] = deque()
        self.outbox: deque[Message] = deque()
        self.is_ready = False
        self._engine = fake_engine(now, cache_gib)
        steps = itertools.count()
        link: Any = SimpleNamespace(send=self.outbox.append)
        self._loop = EngineLoop(self._engine, link, clock=lambda: now() + _STEP_SECONDS * next(steps))

    def load(self) -> None:
        self.is_ready = True
        self.outbox.append(EngineReady(self._engine.info))

    def take_in(self) -> None:
        self._loop._take_in([self.inbox.popleft()])  # type: ignore[list-item]

    @property
    def has_work(self) -> bool:
        return bool(self._engine.has_work() or self._loop._refused)

    def step(self) -> None:
        self._loop._report(self._engine.step())

    @property
    def cache_bytes(self) -> int:
        return self._engine.cache_bytes

    def is_behind(self) -> bool:
        """Whether it has not done, or the manager has not heard, all that concerns its cache."""
        coming = any(isinstance(each, ResizeCache) for each in self.inbox)
        told = any(isinstance(each, EngineReady | CacheResized) for each in self.outbox)
        return coming or told or not self.is_ready

    def requests(self) -> list[str]:
        """Ids of all requests that the manager has sent and has no answer to."""
        coming = [each.request_id for message in self.inbox if isinstance(message, Submit) for each in message.requests]
        ended = [each.request_id for each in self._engine._ended] + [each.request_id for each in self._loop._refused]
        reports = [message for message in self.outbox if isinstance(message, StepReport)]
        told = [each.request_id for report in reports for each in report.outputs]
        told += [each.request_id for report in reports for each in report.failures]
        return [*coming, *self._engine._sequences, *ended, *told]


class Processes:
    """Stands in for the Supervisor: engines start at once, and end when they are told to."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.engines: dict[tuple[str, int], EngineSide] = {}
        self._now = now

    def start(self, name: tuple[str, int], config: ModelConfig, _folder: str, _gpus: Sequence[str]) -> None:
        assert name not in self.engines, "a second engine in one place"
        self.engines[name] = EngineSide(self._now, config.kv_cache_gib)

    def send(self, name: tuple[str, int], message: Message) -> None:
        assert self.engines[name].is_ready, "requests before the model is loaded"
        self.engines[name].inbox.append(message)

    def stop(self, name: tuple[str, int]) -> None:
        del self.engines[name]

    def pids(self) -> dict[tuple[str, int], int]:
        return {}


# ── the manager ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Line:
    """A connection between a client and a manager."""

    client: ClientSocket
    writer: ManagerWriter
    reader: asyncio.StreamReader
    task: asyncio.Task[None]
    is_over_above: bool = False
    """The manager knows that the client is gone."""
    is_over_below: bool = False
    """The client knows that the manager is gone."""


class ManagerSide:
    """A manager's process: its server, its event loop, its engines."""

    def __init__(self, of: ManagerConfig, now: Callable[[], float]) -> None:
        self.loop = asyncio.new_event_loop()
        self.lines: list[Line] = []
        self.server = self.loop.run_until_complete(self._made(of))
        self.processes = Processes(now)
        self.server._supervisor = self.processes  # type: ignore[assignment]

    async def _made(self, of: ManagerConfig) -> server.ManagerServer:
        return server.ManagerServer(of)

    @property
    def engines(self) -> dict[tuple[str, int], EngineSide]:
        return self.processes.engines

    def do(self, event: Callable[..., None], *given: Any, **named: Any) -> None:
        """An event, and all that it sets off."""

        async def happen() -> None:
            event(*given, **named)

        self.loop.run_until_complete(happen())
        self.turn()

    def turn(self) -> None:
        """Let the event loop do all that is to be done now."""
        for _ in range(_TURNS):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        if self.server._over.done():
            self.server._over.result()

    def accept(self, sock: ClientSocket) -> None:
        reader, writer = asyncio.StreamReader(loop=self.loop), ManagerWriter()
        task = self.loop.create_task(self.server._guarded(reader, writer))  # type: ignore[arg-type]
        self.lines.append(Line(sock, writer, reader, task))
        self.turn()

    def number(self, line: Line) -> int | None:
        """The number by which the router knows the client."""
        clients = self.server._clients.items()
        return next((number for number, each in clients if cast(object, each.connection._writer) is line.writer), None)

    def models(self) -> dict[str, Model]:
        return self.server._router._models

    def tick(self, now: float) -> None:
        self.server._router.tick(now)
        self.do(self.server._soon)

    def close(self) -> None:
        for line in self.lines:
            line.task.cancel()
        self.turn()
        self.loop.close()


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Asked:
    """One call of a client's `send`."""

    number: int
    future: Future[Any]
    deltas: list[Delta] = field(default_factory=list)
    may_be_aborted: bool = False


class ClientSide:
    """A client's process: one session."""

    def __init__(self, waiting: Waiting, of: ManagerConfig, model: ModelConfig) -> None:
        self.waiting = waiting
        self.elections = Elections(waiting)
        self.model = model
        self.session: Session = watched_session(waiting, model, self.elections, of, tokenizer())
        self.asked: list[Asked] = []
        self.rest()

    def rest(self) -> None:
        """Return when the session's receiving thread has nothing to do."""
        self.waiting.until_all_do([receiving_thread(self.session)])

    def send(self, number: int, *, stream: bool) -> None:
        """Ask, if there is a credit."""
        asked = Asked(number, Future())
        on_delta = asked.deltas.append if stream else None
        try:
            asked.future = self.session.send_at_once(request(number, stream=stream), on_delta)
        except WouldWait:
            self.rest()  # it may want a connection now
            return
        self.asked.append(asked)
        self.session.flush_at_once()
        self.rest()

    def outstanding(self) -> list[int]:
        return sorted({each.number for each in self.asked if not each.future.done()})

    def cancel(self, number: int) -> None:
        for each in self.asked:
            each.may_be_aborted |= each.number == number
        self.session.cancel(f"r{number}")
        self.rest()

    def cancel_future(self, index: int) -> None:
        """One of those who wait lets go of its future."""
        open_ones = [each for each in self.asked if not each.future.done()]
        if open_ones:
            open_ones[index % len(open_ones)].future.cancel()
            self.rest()

    def close(self) -> None:
        for each in self.asked:
            each.may_be_aborted = True
        self.session.close()
