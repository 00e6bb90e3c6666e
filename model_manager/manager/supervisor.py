"""Starts and stops the inference processes (engines) of all models, and reports their messages and deaths.

A new process starts only when the process before it is gone. Knows no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from ..wire.config import ManagerConfig, ModelConfig
from ..wire.errors import MillraceError
from ..wire.messages import Message
from .engine_process import EngineProcess, EngineReport
from .fork_server_process import ForkServerProcess
from .launching import ENGINE_COMMAND, Launcher

EngineName = tuple[str, int]
"""The model's key, and which of its engines."""


class Listener(Protocol):
    """Receives the messages and deaths of engines."""

    def engine_said(self, name: EngineName, message: EngineReport) -> None:
        """An engine sent a message; heartbeats without warnings are left out."""

    def engine_died(self, name: EngineName, reason: str, *, load_failed: bool) -> None:
        """The engine ended without being asked to, and its process is gone.

        `load_failed`: it failed while it loaded the model, and a new process would fail too.
        """

    def broken(self, error: BaseException) -> None:
        """The supervisor itself failed: a bug."""


class Supervisor:
    """The engines of all models, at most one process for each at a time."""

    def __init__(
        self,
        settings: ManagerConfig,
        listener: Listener,
        command: Sequence[str] = ENGINE_COMMAND,
        fork_server: ForkServerProcess | None = None,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._launcher = Launcher(command, fork_server)
        self._engines: dict[EngineName, EngineProcess] = {}
        self._lives: dict[EngineName, asyncio.Task[None]] = {}
        self._locks: dict[EngineName, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()

    def pids(self) -> dict[EngineName, int]:
        """Process ids of the engines."""
        return {name: engine.pid for name, engine in self._engines.items()}

    def start(self, name: EngineName, config: ModelConfig, folder: str, gpus: Sequence[str] = ()) -> None:
        """Start an engine. First wait until its earlier process, and all engines that were told to end, are gone, so
        that their memory is free.

        If `gpus` are named, the engine sees no others.
        """
        self._lives[name] = self._do(self._live(name, config, folder, gpus))

    def send(self, name: EngineName, message: Message) -> None:
        """Send to an engine; dropped if it is just dying."""
        if (engine := self._engines.get(name)) is not None:
            engine.send(message)

    def stop(self, name: EngineName) -> None:
        """End an engine. The listener hears no more of it."""
        engine, life = self._engines.pop(name, None), self._lives.pop(name, None)
        if engine is not None:
            ending = self._do(engine.shut_down())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        elif life is not None:
            life.cancel()

    async def close(self) -> None:
        """End all engines and wait until their processes are gone."""
        for name in list(self._lives):
            self.stop(name)
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._launcher.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._did)
        return task

    def _did(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._listener.broken(error)

    async def _live(self, name: EngineName, config: ModelConfig, folder: str, gpus: Sequence[str]) -> None:
        async with self._locks.setdefault(name, asyncio.Lock()):
            while self._ending:
                await asyncio.wait(self._ending.copy())
            try:
                process, ours = await self._launcher.launch(config, gpus)
            except (OSError, ValueError, MillraceError) as error:
                # ValueError: no process can be given such an argument
                self._listener.engine_died(name, f"its process cannot be started: {error}", load_failed=True)
                return
            engine = self._engines[name] = EngineProcess(process, ours, config, folder, self._settings)
            death = await engine.run(lambda message: self._hear(name, engine, message))
        if self._engines.get(name) is engine:
            del self._engines[name]
            self._listener.engine_died(name, death.reason, load_failed=death.load_failed)

    def _hear(self, name: EngineName, engine: EngineProcess, message: EngineReport) -> None:
        if self._engines.get(name) is engine:
            self._listener.engine_said(name, message)
