"""One inference process (an engine): sent messages, watched and ended. Knows no request, nor how it was started.

The process is killed if it closes its socket, sends something that is no message, gives no sign of life, or spends too
long in one step or in loading. When the manager ends, for whatever reason, the kernel ends the process too
(engine/process.py asks for that): nothing here has to outlive the manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..wire.config import ManagerConfig, ModelConfig
from ..wire.engine_messages import (
    LOAD_INTERRUPTED,
    CacheResized,
    EngineFailed,
    EngineMessage,
    EngineReady,
    Heartbeat,
    Shutdown,
    StartEngine,
    StepReport,
)
from ..wire.errors import signal_name
from ..wire.messages import Message
from ..wire.transport import AsyncConnection, ConnectionLost, ProtocolError
from .launching import LaunchedProcess

_FIRST_SIGN_WITHIN = 60.0
"""Seconds for a new process to give its first sign of life: Python itself starts slowly on a loaded machine."""
_SHUTDOWN_WITHIN = 3.0
"""Seconds that an engine has to end when asked, before it is killed."""
_EXIT_WITHIN = 10.0
"""Seconds between the end of its connection and the end of its process, on a machine that may be very busy."""
_STDERR_LINES = 20
_LEAKS = ("nanobind: ", " - leaked ", " - ... skipped", "See https://nanobind.")
"""How lines begin that nanobind prints about leaked objects, after the error that ended the process."""

EngineReport = EngineReady | EngineFailed | StepReport | CacheResized | Heartbeat
"""The messages of an engine that are handed on: all but heartbeats without warnings."""


@dataclass(frozen=True)
class Death:
    """Why an engine ended."""

    reason: str
    load_failed: bool = False
    """True if the engine failed while it loaded the model, in a way that another start would repeat."""


class EngineProcess:
    """One inference process."""

    def __init__(
        self,
        process: LaunchedProcess,
        ours: socket.socket,
        config: ModelConfig,
        folder: str,
        settings: ManagerConfig,
    ) -> None:
        """The process has just started; `ours` is our end of the socket to it."""
        self._process = process
        self._settings = settings
        self._socket = ours
        self._start = StartEngine(config=config, folder=folder, heartbeat=settings.heartbeat)
        self._connection: AsyncConnection[EngineMessage] | None = None
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._killed: Death | None = None
        """Why this process killed the engine; None if it did not, or only made sure that the engine is gone."""
        self._loaded = False
        self._heard: float | None = None
        self._started = time.monotonic()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def run(self, hear: Callable[[EngineReport], None]) -> Death:
        """Pass each message of the engine to `hear` until the engine is gone; returns why it ended."""
        reader, writer = await asyncio.open_unix_connection(sock=self._socket)
        self._connection = AsyncConnection(reader, writer, EngineMessage)
        self._connection.send(self._start)
        helpers = [asyncio.create_task(self._keep_stderr()), asyncio.create_task(self._watch())]
        try:
            await self._listen(hear)
            return await self._death(helpers[0])
        finally:
            self._end_process()
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            self._connection.abort()
            await self._reap()

    def send(self, message: Message) -> None:
        """Buffer a message for the engine."""
        if self._connection is not None:
            self._connection.send(message)

    def kill(self, reason: str, *, load_failed: bool = False) -> None:
        """End the engine at once; the first call's reason counts."""
        self._killed = self._killed or Death(reason, load_failed)
        self._end_process()

    def _end_process(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def shut_down(self) -> None:
        """Ask a loaded engine to end, and kill it if it does not. Returns when the process is gone."""
        if self._loaded:
            self.send(Shutdown())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reap(), _SHUTDOWN_WITHIN)
        self._end_process()
        await self._reap()

    async def _listen(self, hear: Callable[[EngineReport], None]) -> None:
        assert self._connection is not None
        try:
            while True:
                message = await self._connection.receive()
                self._heard = time.monotonic()
                if isinstance(message, Heartbeat):
                    self._check_progress(message)
                    if message.warnings:
                        hear(message)
                else:
                    self._loaded = self._loaded or isinstance(message, EngineReady)
                    hear(message)
        except ConnectionLost:
            pass
        except ProtocolError as error:
            self.kill(f"it sent {error}")

    def _check_progress(self, heartbeat: Heartbeat) -> None:
        setting = "step_timeout" if self._loaded else "load_timeout"
        limit: float = getattr(self._settings, setting)
        if heartbeat.in_step > limit:
            doing = "its step has run" if self._loaded else "it has been loading the model"
            last = "" if self._loaded else self._last_line()
            self.kill(f"{doing} for more than {setting} = {limit:g} s{last}", load_failed=not self._loaded)

    async def _watch(self) -> None:
        """Kill the engine when it has been silent for too long. Time in which the manager itself was held up is not
        counted.
        """
        interval = self._settings.hang_timeout / 8
        while True:
            before = time.monotonic()
            await asyncio.sleep(interval)
            now = time.monotonic()
            if now - before > 2 * interval and self._heard is not None:
                self._heard = now
            elif self._silent_for_too_long(now):
                self.kill(f"it gave no sign of life for {self._settings.hang_timeout:g} s")
                return

    def _silent_for_too_long(self, now: float) -> bool:
        if self._heard is None:
            return now - self._started > max(_FIRST_SIGN_WITHIN, self._settings.hang_timeout)
        return now - self._heard > self._settings.hang_timeout

    async def _keep_stderr(self) -> None:
        reader = asyncio.StreamReader(limit=2**20)
        assert self._process.stderr is not None
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), self._process.stderr
        )
        try:
            while data := await reader.read(2**16):
                lines = data.decode(errors="replace").splitlines()
                self._stderr.extend(line for line in lines if line.strip() and not line.startswith(_LEAKS))
        finally:
            transport.close()

    async def _death(self, stderr: asyncio.Task[None]) -> Death:
        """Why the engine ended, once its socket is closed, with the last line that it wrote to stderr."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reap(), _EXIT_WITHIN)  # it ends by itself, and its exit code tells how
        exited = self._process.poll()
        if exited is None:
            self.kill("it closed its connection")
            await self._reap()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(stderr), 1.0)
        if self._killed is not None:
            return self._killed
        last = self._last_line()
        code = self._process.returncode or 0
        if code < 0:
            return Death(f"it was ended by {signal_name(-code)}{last}")
        return Death(f"it exited with code {code}{last}", load_failed=not self._loaded and code != LOAD_INTERRUPTED)

    def _last_line(self) -> str:
        """What it wrote last, behind a colon; empty if it wrote nothing."""
        return f": {self._stderr[-1][:500]}" if self._stderr else ""

    async def _reap(self) -> None:
        while self._process.poll() is None:
            await asyncio.sleep(0.01)
