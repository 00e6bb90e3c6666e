"""All processes of a machine in one. A test delivers each message, and kills each party between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from millrace.model_manager.client import attempts
from millrace.model_manager.manager import server
from millrace.model_manager.store.memory import MemoryNeed
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.engine_messages import EngineFailed
from millrace.model_manager.wire.errors import ModelLost
from tests.model_manager.memory_pipes import ClientSocket, Waiting
from tests.model_manager.sides import GIB, ClientSide, Line, ManagerSide


class World:
    """All processes of a machine."""

    def __init__(self, of: ManagerConfig, *, is_elastic: bool = False) -> None:
        """Two models do not fit at once; if `is_elastic`, they do once the KV cache of the first is cut."""
        self.settings = of
        sizes = (GIB, GIB // 4, 2 * GIB) if is_elastic else (2 * GIB, 0, 0)
        self.now = 0.0
        self.waiting = Waiting()
        self.manager: ManagerSide | None = None
        self.clients: list[ClientSide] = []
        self._patches: list[Any] = [
            mock.patch.object(server, "time", SimpleNamespace(monotonic=lambda: self.now)),
            mock.patch.object(
                server, "memory_need", lambda of, _: MemoryNeed(*(size // of.num_engines for size in sizes))
            ),
            mock.patch.object(server, "visible_gpus", tuple),
            mock.patch.object(attempts, "_LONGEST_PAUSE", 0.0),
        ]
        for patch in self._patches:
            patch.start()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        if self.manager is not None:
            self.manager.close()
        for patch in self._patches:
            patch.stop()

    # ── what may happen next ──

    def open_client(self, model: ModelConfig) -> None:
        self.clients.append(ClientSide(self.waiting, self.settings, model))

    def transitions(self) -> list[Callable[[], None]]:
        """Whatever the next message, or step of an engine, may be."""
        wanting = [client for client in self.clients if client.elections.is_wanted]
        return [*(partial(self.connect, each) for each in wanting), *self._manager_transitions()]

    def _manager_transitions(self) -> Iterator[Callable[[], None]]:
        if self.manager is None:
            return
        for line in self.manager.lines:
            if line.client.sent or (line.client.is_closed and not line.is_over_above):
                yield partial(self.deliver_up, line)
            if len(line.client.sent) > 1:
                yield partial(self.deliver_all_up, line)
            if not line.is_over_below and (line.writer.sent or line.writer.is_closed):
                yield partial(self.deliver_down, line)
        for name, engine in self.manager.engines.items():
            if engine.outbox:
                yield partial(self.hear, name)
            if engine.inbox:
                yield engine.take_in
            if not engine.is_ready:
                yield engine.load
            elif engine.has_work:
                yield engine.step

    def connect(self, client: ClientSide) -> None:
        """A client finds the manager, or starts one."""
        if self.manager is None:
            self.manager = ManagerSide(self.settings, lambda: self.now)
        sock = ClientSocket(self.waiting)
        self.manager.accept(sock)
        client.elections.give(sock)
        client.rest()

    def deliver_up(self, line: Line) -> None:
        assert self.manager is not None
        if line.client.sent:
            line.reader.feed_data(line.client.sent.popleft())
        else:
            line.is_over_above = True
            line.reader.feed_eof()
        self.manager.turn()
        self._forget_ended()

    def deliver_all_up(self, line: Line) -> None:
        """The manager gets several messages in one pass of its event loop."""
        frames = b"".join(line.client.sent)
        line.client.sent.clear()
        line.client.sent.append(frames)
        self.deliver_up(line)

    def deliver_down(self, line: Line) -> None:
        if line.writer.sent:
            line.client.feed(line.writer.sent.popleft())
        else:
            line.is_over_below = True
            line.client.end()
        self.rest()
        self._forget_ended()

    def hear(self, name: tuple[str, int]) -> None:
        assert self.manager is not None
        self.manager.do(self.manager.server.engine_said, name, self.manager.engines[name].outbox.popleft())

    def _forget_ended(self) -> None:
        assert self.manager is not None
        self.manager.lines = [each for each in self.manager.lines if not (each.is_over_above and each.is_over_below)]

    def rest(self) -> None:
        for client in self.clients:
            client.rest()

    # ── deaths ──

    def kill_engine(self, name: tuple[str, int], arrives: int) -> None:
        """The first messages that it has sent arrive, so many of them."""
        assert self.manager is not None
        engine = self.manager.engines[name]
        while arrives and engine.outbox:
            self.hear(name)
            arrives -= 1
        if self.manager.engines.get(name) is engine:
            del self.manager.engines[name]
            self.manager.do(self.manager.server.engine_died, name, "killed", load_failed=False)

    def lose_engine(self, name: tuple[str, int]) -> None:
        """An engine says that it can do no more, once all that it has sent before has come."""
        assert self.manager is not None
        engine = self.manager.engines[name]
        engine.outbox.append(EngineFailed(ModelLost("its servers are gone").info()))
        while engine.outbox:
            self.hear(name)

    def kill_manager(self, arrives: int, part: int) -> None:
        """The first messages that it has sent to each client arrive, so many of them, and some bytes of the next."""
        if self.manager is None:
            return
        lines, self.manager.lines = self.manager.lines, []
        manager, self.manager = self.manager, None
        for line in lines:
            sent = list(line.writer.sent)
            for frame in sent[:arrives]:
                line.client.feed(frame)
            for frame in sent[arrives : arrives + 1]:
                line.client.feed(frame[:part])
            line.client.end()
        manager.lines = lines
        manager.close()
        self.rest()

    def kill_client(self, client: ClientSide) -> None:
        """What it has sent arrives; what is on its way to it does not."""
        self.clients.remove(client)
        for line in self.manager.lines if self.manager is not None else ():
            if self._has(client, line):
                line.client.close()
                line.is_over_below = True
        client.session.close()

    def close_client(self, client: ClientSide) -> None:
        """It ends as it should."""
        self.clients.remove(client)
        line = self.line_of(client)
        client.close()
        if line is not None:
            line.is_over_below = True

    def cut(self, line: Line) -> None:
        """A connection ends, and both ends live."""
        line.client.end()
        line.client.is_closed = True
        line.is_over_below = True
        self.rest()

    def _has(self, client: ClientSide, line: Line) -> bool:
        link = client.session._link
        return link is not None and cast(object, link._connection._sock) is line.client

    def line_of(self, client: ClientSide) -> Line | None:
        lines = self.manager.lines if self.manager is not None else []
        return next((line for line in lines if self._has(client, line)), None)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.manager is not None:
            self.manager.tick(self.now)

    def drain_messages(self) -> None:
        """Everything happens that can without time."""
        for _ in range(5000):
            if not (possible := self.transitions()):
                return
            possible[0]()
        raise AssertionError("it goes on for ever")

    def drain(self) -> None:
        """Everything happens that can, and time passes, until every future is done."""
        for _ in range(60):
            self.drain_messages()
            if all(asked.future.done() for client in self.clients for asked in client.asked):
                return
            self.pass_time(3.0)
