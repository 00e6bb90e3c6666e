"""A job as a process of its own: started, looked at, ended with all that it started. Knows neither Beam nor batches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from millrace.model_manager.wire.errors import signal_name

_GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL."""
_SHOWN = 500
"""Characters of what a job said last."""


class Job:
    """A running job."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ended(self, within: float) -> bool:
        """Whether it has ended, once so many seconds are over or it has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._process.wait()
        return self._process.returncode is not None

    async def end(self) -> None:
        """End it and what it started. What it has written stays."""
        if self._process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        if not await self.ended(_GRACE):
            self._signal(signal.SIGKILL)
            await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process's group, or to the process alone if it does not lead its group yet."""
        with contextlib.suppress(ProcessLookupError):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                self._process.send_signal(number)


@contextlib.asynccontextmanager
async def started(command: Sequence[str], log: Path) -> AsyncIterator[Job]:
    """The job of a command; it does not outlive the block. What it prints is added to `log`."""
    with log.open("ab") as stream:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=stream, stderr=stream
        )
    job = Job(process)
    try:
        yield job
    finally:
        _note_signal(process.returncode, log)
        await job.end()


def _note_signal(status: int | None, log: Path) -> None:
    """Add to the log which signal has ended a job: it could not say so itself."""
    if status is not None and status < 0:
        with contextlib.suppress(OSError), log.open("a") as stream:
            stream.write(f"\nmillrace: the job was ended by {signal_name(-status)}\n")


def last_words(log: Path) -> str:
    """What a job said last: why it failed."""
    with contextlib.suppress(FileNotFoundError):
        lines = log.read_text("utf-8", "replace").splitlines()
        said = [line for line in lines if line.startswith("millrace: ")] or lines
        return said[-1].removeprefix("millrace: ")[:_SHOWN] if said else ""
    return ""
