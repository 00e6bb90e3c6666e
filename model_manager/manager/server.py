"""The manager's IO: clients on a Unix socket or over TCP, and engines through the supervisor. The router decides.

Every event goes to the router at once. The router's decisions are carried out once an iteration of the event loop, so
that requests and results that arrive together are sent on together. Knows no rule about requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from ..store.memory import memory_need
from ..wire.config import ManagerConfig
from ..wire.engine_messages import CacheResized, EngineFailed, EngineReady, Heartbeat, StepReport
from ..wire.errors import ConfigError, ErrorInfo, InvalidRequest, ManagerUnavailable, MillraceError
from ..wire.machine import cores_of_engines, free_memory
from ..wire.messages import (
    PROTOCOL,
    Cancel,
    ClientMessage,
    CloseModel,
    FindAdapter,
    GetStatus,
    Hello,
    Message,
    ModelFailed,
    OpenModel,
    Ping,
    Pong,
    Refused,
    Status,
    StopModels,
    Submit,
    Welcome,
)
from ..wire.request import Failure
from ..wire.status import ProcessStatus
from ..wire.transport import MAX_FRAME_BYTES, AsyncConnection, ConnectionLost, FrameRoom, ProtocolError, peer_pid_uid
from .acceptor import Acceptor, host_of
from .engine_process import EngineReport
from .finding import found_adapter, found_model
from .fork_server_process import ForkServerProcess
from .gpus import gpu_memory, visible_gpus
from .known_models import KnownModels
from .launching import ENGINE_COMMAND
from .memory_account import MACHINE
from .memory_scheduler import MemoryScheduler
from .outbox import Effect, Start, Stop, ToClient, ToEngine
from .router import Router
from .searches import Found, Searches
from .supervisor import EngineName, Supervisor

_TICK = 0.2
"""Seconds."""
_GOODBYE_WITHIN = 1.0
"""Seconds that clients have at the end to take what was sent to them."""
_MAX_HELLO_BYTES = 4096
_MAX_UNFINISHED_BYTES = 4 * MAX_FRAME_BYTES
"""Bytes of all clients' frames that have begun to come."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _ClientConnection:
    """A client's connection, and who it is, for lists of processes."""

    connection: AsyncConnection[ClientMessage]
    pid: int
    host: str


class ManagerServer:
    """One manager, from its first client to its end."""

    def __init__(
        self,
        settings: ManagerConfig,
        engine_command: Sequence[str] = ENGINE_COMMAND,
        tls: ssl.SSLContext | None = None,
        *,
        allow_commands: bool = False,
        fork_server: ForkServerProcess | None = None,
        starter: int | None = None,
        is_fenced: Callable[[], bool] = lambda: False,
    ) -> None:
        """`tls`: what connections over TCP begin with. Such a manager stays when nobody needs it. `allow_commands`: its
        clients may name programs and variables of its environment. `fork_server`: what forks engines, if it has
        started. `starter`: the process that started it for itself. `is_fenced`: whether another has its place.
        """
        self._settings = settings
        self._stays = tls is not None
        self._starter = starter
        self._is_fenced = is_fenced
        self._is_forsaken = False
        """Nobody was there at the last look. A client may have connected, and be accepted by the next one."""
        self._found_model = partial(found_model, allow_commands=allow_commands)
        gpus, cores = visible_gpus(), cores_of_engines()
        self._known = KnownModels()
        memory = _memory(settings, gpus)
        self._router = Router(settings, time.monotonic(), gpus, cores, memory, memory_need, self._known.find)
        self._supervisor = Supervisor(settings, self, engine_command, fork_server)
        self._clients: dict[int, _ClientConnection] = {}
        self._numbers = 0
        self._acceptor = Acceptor(self._guarded, tls)
        self._searches = Searches()
        self._room = FrameRoom(_MAX_UNFINISHED_BYTES, settings.hang_timeout)
        self._started = time.monotonic()
        self._instance = uuid.uuid4().hex
        self._due = False
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, listening: socket.socket) -> None:
        """Serve until no client needs the manager, or its end if it stays. Raises the error of a bug in the manager."""
        async with self._serving(listening):
            while not self._over.done() and (self._stays or not self._is_done()):
                await asyncio.wait([self._over], timeout=_TICK)
                if self._is_fenced():
                    _log.warning("ends: another manager has its place, as it stood still or its lock file was removed")
                    break
                self._router.tick(time.monotonic())
                self._soon()
        if self._over.done():
            self._over.result()

    def _is_done(self) -> bool:
        was_forsaken, self._is_forsaken = self._is_forsaken, self._has_nobody()
        return (was_forsaken and self._is_forsaken) or self._router.is_done(time.monotonic())

    def _has_nobody(self) -> bool:
        """Whether its starter, now not its parent any more, has ended before it or another client connected."""
        has_ended = self._starter is not None and self._starter != os.getppid()
        return has_ended and not self._router.was_needed and not self._acceptor.handlers

    @contextlib.asynccontextmanager
    async def _serving(self, listening: socket.socket) -> AsyncIterator[None]:
        accepting = asyncio.create_task(self._acceptor.run(listening))
        accepting.add_done_callback(self._accepted)
        try:
            yield
        finally:
            self.end()
            accepting.cancel()
            await asyncio.wait([accepting])
            listening.close()
            self._act()
            await self._supervisor.close()
            await self._see_off()

    def end(self) -> None:
        """Stop serving (a signal, StopModels)."""
        if not self._over.done():
            self._over.set_result(None)

    def broken(self, error: BaseException) -> None:
        """A bug in the manager: end, and raise `error` from `run`."""
        if not self._over.done():
            self._over.set_exception(error)

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _accepted(self, accepting: asyncio.Task[None]) -> None:
        if not accepting.cancelled() and (error := accepting.exception()) is not None:
            self.broken(error)

    async def _guarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection: AsyncConnection[ClientMessage] = AsyncConnection(reader, writer, ClientMessage, self._room)
        sock = writer.get_extra_info("socket")
        pid, host = 0, host_of(sock)
        try:
            if sock.family == socket.AF_UNIX:
                pid, uid = peer_pid_uid(sock)
                if uid != os.geteuid():
                    raise ProtocolError(f"user {uid} is not this manager's")
            await self._handle(connection, pid, host)
        except ConnectionLost:
            pass
        except ProtocolError as error:
            _log.warning("closed the connection of %s: %s", host or f"process {pid}", error)
            connection.abort()
        except Exception as error:
            self.broken(error)
        finally:
            connection.close()

    async def _handle(self, connection: AsyncConnection[ClientMessage], pid: int, host: str) -> None:
        hello = await self._first(connection)
        if not isinstance(hello, Hello):
            raise ProtocolError(f"a {type(hello).__name__} before Hello")
        if (refusal := self._refusal(hello)) is not None:
            connection.send(Refused(refusal.info()))
            return
        connection.send(Welcome(protocol=PROTOCOL, pid=os.getpid(), settings=self._settings))
        client = self._numbers = self._numbers + 1
        self._clients[client] = _ClientConnection(connection, pid or hello.pid, host)
        self._router.connect(client, observer=hello.observer)
        try:
            while True:
                message = await connection.receive()
                self._client_said(client, message)
                if isinstance(message, GetStatus):
                    await connection.drain()  # what else is sent to a client is bounded by what it has outstanding
        finally:
            del self._clients[client]
            self._router.disconnect(client, time.monotonic())
            self._soon()

    async def _first(self, connection: AsyncConnection[ClientMessage]) -> ClientMessage:
        within = self._settings.hang_timeout
        try:
            async with asyncio.timeout(within):
                return await connection.receive(_MAX_HELLO_BYTES)
        except TimeoutError:
            raise ProtocolError(f"no Hello within hang_timeout = {within:g} s") from None

    def _refusal(self, hello: Hello) -> MillraceError | None:
        if hello.protocol != PROTOCOL:
            took = f"this machine's manager speaks protocol {PROTOCOL}, this process {hello.protocol}"
            if self._stays:
                return ConfigError(f"{took}: install the same millrace in both containers")
            return ConfigError(f"{took}: end the other version's jobs, or give this one its own MILLRACE_RUNTIME_DIR")
        return ManagerUnavailable("the manager is ending") if self._over.done() else None

    def _client_said(self, client: int, message: ClientMessage) -> None:
        now = time.monotonic()
        match message:
            case Submit():
                self._router.submit(client, message, now)
            case Cancel():
                self._router.cancel(client, message, now)
            case OpenModel() if self._stays:
                names = message.config.model, message.config.draft_model
                self._search(client, names, partial(self._found_model, message), partial(self._open, client, message))
            case OpenModel():
                self._router.open_model(client, message, now)
            case FindAdapter():
                self._search(client, [message.name], partial(found_adapter, message.name), partial(self._send, client))
            case CloseModel():
                self._router.close_model(client, message, now)
            case Ping():
                if not self._clients[client].connection.buffered:  # else what is buffered is as good a sign of life
                    self._router.send_to_keep(client)
                    self._send(client, Pong(self._router.computed_for(client)))
            case GetStatus():
                self._send(client, self._status(now))
            case StopModels():
                self._stop_models(client, message.key)
            case Hello():
                raise ProtocolError("a second Hello")
        self._soon()

    def _send(self, client: int, message: Message) -> None:
        """Send a message to a client. The message is dropped if the client has gone."""
        if (found := self._clients.get(client)) is not None:
            self._answer(found, message)

    def _answer(self, client: _ClientConnection, message: Message) -> None:
        try:
            client.connection.send(message)
        except ProtocolError as error:  # what it, or all clients together, made too large: nobody else is harmed
            _log.warning("closed the connection of %s: %s", client.host or f"process {client.pid}", error)
            client.connection.abort()

    def _search(
        self, client: int, names: Iterable[str | None], search: Callable[[], Found], found: Callable[[Found], None]
    ) -> None:
        self._searches.begin(self._clients[client].host, names, search, found, lambda: client in self._clients)

    def _open(self, client: int, opening: OpenModel, found: OpenModel | ErrorInfo) -> None:
        """The model was looked for; now the client has asked for it."""
        if client not in self._clients:
            return
        if isinstance(found, ErrorInfo):
            self._send(client, ModelFailed(opening.config.key, found))
        else:
            self._router.open_model(client, found, time.monotonic())
            self._soon()

    def _stop_models(self, client: int, key: str | None) -> None:
        self._router.stop_model(key)
        self._act()
        self._send(client, self._status(time.monotonic()))
        if key is None and not self._stays:
            self.end()

    def _status(self, now: float) -> Status:
        pids = self._supervisor.pids()
        models = self._router.models(pids)
        names = {model.key: f"{model.model}@{model.revision}" if model.revision else model.model for model in models}
        manager = ProcessStatus(os.getpid(), "manager")
        engines = [ProcessStatus(pid, "engine", names.get(key, "")) for (key, _), pid in sorted(pids.items())]
        clients = [
            ProcessStatus(each.pid, "client", names_used, each.host)
            for client, each in self._clients.items()
            if (names_used := self._router.models_of(client))
        ]
        return Status(
            pid=os.getpid(),
            uptime=now - self._started,
            models=models,
            jobs=self._router.jobs(),
            processes=[manager, *engines, *clients],
            ended=self._router.ended(),
            instance=self._instance,
        )

    async def _see_off(self) -> None:
        """Close all connections, once clients have read what was sent to them or _GOODBYE_WITHIN is over."""
        for each in list(self._clients.values()):
            each.connection.close()
        if handlers := self._acceptor.handlers:
            await asyncio.wait(handlers, timeout=_GOODBYE_WITHIN)
        for handler in handlers:
            handler.cancel()

    # ── engines (the supervisor's listener) ──────────────────────────────────────────────────────────────────────────

    def engine_said(self, name: EngineName, message: EngineReport) -> None:
        """A message of an engine."""
        now = time.monotonic()
        key, engine = name
        model = self._router.model(key)
        match message:
            case StepReport():
                model.report(engine, message, now)
            case CacheResized():
                model.cache_resized(engine, message.cache_bytes)
            case Heartbeat():
                model.warn(message.warnings)
            case EngineReady():
                model.ready(engine, message.info, now)
                self._known.keep(model.config, model.folder, message.info)
            case EngineFailed():
                _log.warning("%s is given up: %s", key, message.error.message)
                model.cannot_load(engine, message.error, now)
        self._soon()

    def engine_died(self, name: EngineName, reason: str, *, load_failed: bool) -> None:
        """An engine is gone, unasked."""
        key, engine = name
        _log.warning("inference process %d of %s is gone: %s", engine, key, reason)
        self._router.model(key).died(engine, reason, load_failed=load_failed, now=time.monotonic())
        self._soon()

    # ── effects ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._act)

    def _act(self) -> None:
        self._due = False
        try:
            for effect in self._router.effects(time.monotonic()):
                self._carry_out(effect)
        except Exception as error:
            self.broken(error)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case ToClient(client, message):
                self._send(client, message)
            case ToEngine(key, message, engine):
                self._to_engine(key, engine, message)
            case Start(key, config, folder, engine, gpus):
                if not self._over.done():
                    self._supervisor.start((key, engine), config, folder, gpus)
            case Stop(key, engine):
                self._supervisor.stop((key, engine))

    def _to_engine(self, key: str, engine: int, message: Message) -> None:
        try:
            self._supervisor.send((key, engine), message)
        except ProtocolError as error:  # with what the manager adds to a request, it is larger than a message
            requests = message.requests if isinstance(message, Submit) else []
            info = InvalidRequest(f"the request cannot be sent to the engine: {error}").info()
            failures = [Failure(request.request_id, info) for request in requests]
            self.engine_said((key, engine), StepReport(failures=failures))


def _memory(settings: ManagerConfig, gpus: Sequence[str]) -> MemoryScheduler:
    """The memory for models: what `memory_gib` says, or what there is."""
    if settings.memory_gib is not None:
        return MemoryScheduler(dict.fromkeys((MACHINE, *gpus), int(settings.memory_gib * 2**30)), is_limited=True)
    return MemoryScheduler({MACHINE: free_memory(), **gpu_memory(gpus)})
