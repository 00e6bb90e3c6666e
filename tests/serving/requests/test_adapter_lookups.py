"""Look-ups of adapters beside the event loop: who waits for which. No engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.model_manager.wire.errors import InvalidRequest, RequestAborted
from millrace.model_manager.wire.request import Adapter
from millrace.serving.requests.adapter_lookups import AdapterLookups
from millrace.serving.requests.submitting import Crossing


class Folders:
    """Adapters by path; each look-up notes itself, and the path `slow` waits until it may go on."""

    def __init__(self) -> None:
        self.looked_up: list[str] = []
        self.threads: set[threading.Thread] = set()
        self.begun = threading.Semaphore(0)
        self.may_go_on = threading.Semaphore(0)

    def find(self, path: str) -> Adapter | None:
        self.looked_up.append(path)
        self.threads.add(threading.current_thread())
        if path == "bad":
            raise InvalidRequest("adapter bad: no such folder")
        if path == "slow":
            self.begun.release()
            assert self.may_go_on.acquire(timeout=60)
        return Adapter(path, f"/{path}", str(self.looked_up.count(path)))


def run(test: Callable[[AdapterLookups, Folders], Coroutine[Any, Any, None]]) -> Folders:
    """The test in an event loop; afterwards no thread of the look-ups is left."""
    folders = Folders()

    async def main() -> None:
        lookups = AdapterLookups(folders.find, Crossing(asyncio.get_running_loop()))
        try:
            await test(lookups, folders)
        finally:
            lookups.close()

    asyncio.run(main())
    for _ in folders.looked_up:
        folders.may_go_on.release()
    for thread in folders.threads:
        thread.join(60)
        assert not thread.is_alive()
    return folders


def asked(lookups: AdapterLookups, path: str) -> asyncio.Task[Adapter | None]:
    return asyncio.create_task(lookups.find(path))


async def begun(folders: Folders) -> None:
    assert await asyncio.to_thread(folders.begun.acquire, timeout=60)


def test_no_adapter_is_not_looked_for() -> None:
    async def test(lookups: AdapterLookups, _: Folders) -> None:
        assert await lookups.find("") is None

    assert run(test).looked_up == []


def test_an_adapter_that_takes_long_holds_up_no_other_and_nothing_is_looked_up_in_the_loop() -> None:
    async def test(lookups: AdapterLookups, folders: Folders) -> None:
        slow = asked(lookups, "slow")
        await begun(folders)
        for number in range(3):
            assert await lookups.find("quick") == Adapter("quick", "/quick", str(number + 1))
        assert not slow.done()
        folders.may_go_on.release()
        assert await slow == Adapter("slow", "/slow", "1")
        assert threading.current_thread() not in folders.threads

    run(test)


def test_who_comes_during_a_look_up_gets_what_is_found_after_that_with_all_others() -> None:
    async def test(lookups: AdapterLookups, folders: Folders) -> None:
        first = asked(lookups, "slow")
        await begun(folders)
        others = [asked(lookups, "slow") for _ in range(20)]
        folders.may_go_on.release()
        assert await first == Adapter("slow", "/slow", "1")
        await begun(folders)
        folders.may_go_on.release()
        assert {each and each.digest for each in await asyncio.gather(*others)} == {"2"}

    assert run(test).looked_up == ["slow", "slow"]


def test_what_is_not_found_is_told_to_each_and_looked_for_again() -> None:
    async def test(lookups: AdapterLookups, _: Folders) -> None:
        for _try in range(2):
            with pytest.raises(InvalidRequest, match="no such folder"):
                await lookups.find("bad")
        assert await lookups.find("good") is not None

    assert run(test).looked_up == ["bad", "bad", "good"]


def test_who_waits_no_more_is_left_out() -> None:
    async def test(lookups: AdapterLookups, folders: Folders) -> None:
        gone, stays = asked(lookups, "slow"), asked(lookups, "slow")
        await begun(folders)
        gone.cancel()
        folders.may_go_on.release()
        folders.may_go_on.release()
        assert await stays is not None
        assert gone.cancelled()

    run(test)


def test_who_waits_at_the_end_is_told() -> None:
    async def test(lookups: AdapterLookups, folders: Folders) -> None:
        waiting = [asked(lookups, "slow") for _ in range(2)]
        await begun(folders)
        lookups.abort()
        for each in waiting:
            with pytest.raises(RequestAborted, match="the server ends"):
                await each

    run(test)
