"""Work that may have to wait: it ends as it would by itself, and in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.serving.http.waiting import at_once_or_within


def test_work_that_waits_for_nothing_needs_no_loop() -> None:
    async def work() -> int:
        return 3

    with pytest.raises(StopIteration) as ended:
        at_once_or_within(0.0, work()).send(None)
    assert ended.value.value == 3


def test_work_that_waits_gives_its_result() -> None:
    async def work() -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, 4)
        return await future

    assert asyncio.run(at_once_or_within(60, work())) == 4


@pytest.mark.parametrize("waits", [False, True])
def test_an_error_is_the_works_own(waits: bool) -> None:
    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        asyncio.run(at_once_or_within(60, work()))


def test_work_that_takes_too_long_is_cancelled() -> None:
    seen: list[Any] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(TimeoutError):
        asyncio.run(at_once_or_within(0.0, work()))
    assert seen == ["cancelled"]


def test_a_task_that_is_cancelled_cancels_its_work() -> None:
    async def cancelled() -> bool:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await never

        task = asyncio.create_task(at_once_or_within(60, work()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return never.cancelled()

    assert asyncio.run(cancelled())
