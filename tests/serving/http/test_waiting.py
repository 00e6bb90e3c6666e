"""Work that may have to wait: it ends as it would by itself, and in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.serving.http.waiting import Limits, at_once_or_within


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


def test_each_piece_of_work_that_takes_too_long_is_ended_and_those_in_time_are_not() -> None:
    async def run() -> list[str]:
        limits, found = Limits(0.01), []

        async def work(name: str, *, hangs: bool) -> None:
            try:
                with limits.limit():
                    await (asyncio.get_running_loop().create_future() if hangs else asyncio.sleep(0))
                found.append(f"{name} ended")
            except TimeoutError:
                found.append(f"{name} took too long")

        await asyncio.gather(work("one", hangs=True), work("two", hangs=False), work("three", hangs=True))
        await work("four", hangs=True)
        return found

    assert asyncio.run(run()) == ["two ended", "one took too long", "three took too long", "four took too long"]


def test_a_task_that_is_cancelled_for_another_reason_is_not_told_that_it_took_too_long() -> None:
    async def run() -> None:
        async def work() -> None:
            with Limits(60).limit():
                await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
