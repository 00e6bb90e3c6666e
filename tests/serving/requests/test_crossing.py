"""From threads into the loop: in order, with one wake-up for many."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest import mock

from millrace.serving.requests.submitting import Crossing


def test_what_threads_tell_arrives_in_order_with_few_wake_ups() -> None:
    async def run() -> tuple[list[Any], int]:
        loop = asyncio.get_running_loop()
        found: list[Any] = []
        done = asyncio.Event()
        crossing = Crossing(loop)

        def tell() -> None:
            for number in range(1000):
                crossing.call(found.append, number)
            crossing.call(lambda _: done.set(), None)

        with mock.patch.object(loop, "call_soon_threadsafe", wraps=loop.call_soon_threadsafe) as woken:
            thread = threading.Thread(target=tell)
            thread.start()
            thread.join()  # the loop is busy meanwhile
            await done.wait()
        return found, woken.call_count

    found, wake_ups = asyncio.run(run())
    assert found == list(range(1000))
    assert wake_ups == 1


def test_a_loop_that_is_closed_is_told_nothing() -> None:
    loop = asyncio.new_event_loop()
    crossing = Crossing(loop)
    loop.close()
    crossing.call(print, "nobody hears this")
