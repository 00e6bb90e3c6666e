"""Who waits for whom, where many searches last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from millrace.model_manager.manager.searches import AT_ONCE, Searches


def test_an_address_waits_for_its_own_searches_and_what_is_here_for_none_that_is_fetched() -> None:
    asyncio.run(_many_searches())


async def _many_searches() -> None:
    searches, end = Searches(), threading.Event()
    begun: list[str] = []
    ended: asyncio.Queue[str] = asyncio.Queue()

    def search(name: str, *, lasts: bool) -> Callable[[], str]:
        def run() -> str:
            begun.append(name)
            if lasts:
                end.wait()
            return name

        return run

    def begin(host: str, name: str, *, lasts: bool = False, is_wanted: bool = True) -> None:
        searches.begin(host, [name, None], search(name, lasts=lasts), ended.put_nowait, lambda: is_wanted)

    slow = [f"org/{number}" for number in range(2 * AT_ONCE)]
    for name in slow:
        begin("a", name, lasts=True)
    begin("a", "org/of-one-who-left", is_wanted=False)
    begin("a", "here")
    assert await ended.get() == "here"
    begin("b", "gs://b/x")
    assert await ended.get() == "gs://b/x"
    while len(begun) < AT_ONCE + 2:  # each search notes itself on its own thread
        await asyncio.sleep(0.01)
    assert sorted(begun) == sorted([*slow[:AT_ONCE], "here", "gs://b/x"])
    end.set()
    assert {await ended.get() for _ in slow} == set(slow)
    assert "org/of-one-who-left" not in begun


def test_a_manager_that_ends_while_it_searches_says_nothing_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    end, threads = threading.Event(), [*threading.enumerate()]
    asyncio.run(_begun(lambda: str(end.wait()), threads))
    end.set()
    for thread in threading.enumerate():
        if thread not in threads:
            thread.join()
    assert capfd.readouterr().err == ""


async def _begun(search: Callable[[], str], before: list[threading.Thread]) -> None:
    Searches().begin("a", ["here"], search, print, lambda: True)
    while not any(thread.name == "search" and thread not in before for thread in threading.enumerate()):
        await asyncio.sleep(0)
