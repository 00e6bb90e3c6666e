"""Waiting with a limit, where most often there is nothing to wait for, so that a timer would take the most time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, TypeVar, cast

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
