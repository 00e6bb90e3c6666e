"""Searches for models and adapters on threads beside the event loop, a few at once for each address of clients.

A search may last: a hub answers slowly, or never. What is found on this machine waits for nothing that may be fetched.
Knows no connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TypeVar

from ..store.sources import may_be_remote

AT_ONCE = 2
"""Searches for one address that run at once; of names that may be fetched as many again. The others wait."""
Found = TypeVar("Found")


class Searches:
    """The searches of all clients."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, bool], asyncio.Semaphore] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        host: str,
        names: Iterable[str | None],
        search: Callable[[], Found],
        found: Callable[[Found], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Search for `names`, for a client at `host`; `found` gets the result. `is_wanted` is asked first."""
        kind = host, any(map(may_be_remote, filter(None, names)))
        turns = self._turns.setdefault(kind, asyncio.Semaphore(AT_ONCE))
        task = asyncio.create_task(_in_turn(turns, search, found, is_wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _in_turn(
    turns: asyncio.Semaphore, search: Callable[[], Found], found: Callable[[Found], None], is_wanted: Callable[[], bool]
) -> None:
    async with turns:
        if is_wanted():
            found(await asyncio.wrap_future(_on_thread(search)))


def _on_thread(search: Callable[[], Found]) -> Future[Found]:
    """The result of a thread of its own, for which the end of the process does not wait."""
    result: Future[Found] = Future()

    def run() -> None:
        try:
            say = partial(result.set_result, search())
        except BaseException as error:
            say = partial(result.set_exception, error)
        with contextlib.suppress(InvalidStateError):  # the manager has ended meanwhile, and nobody waits
            say()

    threading.Thread(target=run, name="search", daemon=True).start()
    return result
