"""Waiting with a limit, where most often there is nothing to wait for, so that a timer would take the most time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

_Result = TypeVar("_Result")


async def at_once_or_within(seconds: float, work: Coroutine[Any, Any, _Result]) -> _Result:
    """What the work gives. Only if it has to wait for something is there a timer; then raises TimeoutError as
    asyncio.timeout does.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        return cast(_Result, end.value)
    async with asyncio.timeout(seconds):
        return cast(_Result, await _Rest(work, waits_for))


class Limits:
    """Time limits of one length: a single timer serves all blocks of an event loop that have one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: dict[Limit, None] = {}
        """Limits of the blocks that run, the first to end first."""
        self._timer: asyncio.TimerHandle | None = None

    def limit(self) -> Limit:
        """A limit on the block of a `with`, in a task."""
        return Limit(self)

    def begun(self, limit: Limit) -> None:
        """A block began."""
        limit.until = limit.loop.time() + self._seconds
        self._running[limit] = None
        if self._timer is None:
            self._timer = limit.loop.call_at(limit.until, self._check)

    def ended(self, limit: Limit) -> None:
        """A block ended."""
        self._running.pop(limit, None)

    def _check(self) -> None:
        """End the blocks whose time is up; set the timer for the next one."""
        self._timer = None
        while self._running and (first := next(iter(self._running))).until <= first.loop.time():
            del self._running[first]
            first.end()
        if self._running:
            self._timer = first.loop.call_at(first.until, self._check)


class Limit:
    """Raises TimeoutError at the end of a block that took too long, its task cancelled, as asyncio.timeout does."""

    until: float

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._is_over = False

    def __enter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "a limit is set inside a task"
        self._task = task
        self._limits.begun(self)
        return self

    def end(self) -> None:
        """End the block: its time is up."""
        self._is_over = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.ended(self)
        if self._is_over and not self._task.uncancel() and kind is asyncio.CancelledError:
            raise TimeoutError from error


class _Rest:
    """A coroutine that has begun, to be awaited."""

    def __init__(self, work: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        """What it waits for first, then all the rest of it (PEP 380)."""
        waits_for = self._waits_for
        while True:
            try:
                step = partial(self._work.send, (yield waits_for))
            except BaseException as error:
                step = partial(self._work.throw, error)
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
