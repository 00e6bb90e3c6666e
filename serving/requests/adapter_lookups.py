"""Looks up the LoRA adapters that requests name, on threads beside the event loop, before the engine's client is asked.

A look-up reads a folder, hashes files that have changed, or asks a manager elsewhere: each may take long, or stand
still. Each adapter has a thread of its own, so only requests that name it wait. Requests that come during a look-up
wait for the next one, which sees all that was written before they came; all that wait for one get the same answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue

from millrace.model_manager.wire.errors import RequestAborted
from millrace.model_manager.wire.request import Adapter

from .submitting import Crossing

Find = Callable[[str], Adapter | None]
_Waiter = asyncio.Future[Adapter | None]


class AdapterLookups:
    """Look-ups of one server, asked for in its event loop."""

    def __init__(self, find: Find, crossing: Crossing) -> None:
        """`find` gives the adapter of a path, on any thread."""
        self._find = find
        self._crossing = crossing
        self._queues: dict[str, SimpleQueue[_Waiter | None]] = {}
        self._waiting: set[_Waiter] = set()
        self._has_ended = False

    async def find(self, path: str) -> Adapter | None:
        """The adapter of a path; None for an empty one. Raises what `find` raises, RequestAborted after `abort`."""
        if not path:
            return None
        if self._has_ended:
            raise RequestAborted("the server ends")
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._queue(path).put(waiter)
        self._waiting.add(waiter)
        try:
            return await waiter
        finally:
            self._waiting.discard(waiter)

    def abort(self) -> None:
        """Have all that wait raise RequestAborted, as the server ends."""
        self._has_ended = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(RequestAborted("the server ends"))

    def close(self) -> None:
        """End the threads; one whose look-up stands still ends with the process."""
        self._has_ended = True
        for queue in self._queues.values():
            queue.put(None)

    def _queue(self, path: str) -> SimpleQueue[_Waiter | None]:
        if path not in self._queues:
            self._queues[path] = SimpleQueue()
            work = (path, self._queues[path])
            threading.Thread(target=self._run, args=work, name="millrace-adapter", daemon=True).start()
        return self._queues[path]

    def _run(self, path: str, queue: SimpleQueue[_Waiter | None]) -> None:
        while None not in (together := _all_of(queue)):
            waiters = [each for each in together if each is not None]
            self._crossing.call(_answer, (waiters, self._found(path)))

    def _found(self, path: str) -> Future[Adapter | None]:
        found: Future[Adapter | None] = Future()
        try:
            found.set_result(self._find(path))
        except Exception as error:  # whatever it is, it is these requests'
            found.set_exception(error)
        return found


def _all_of(queue: SimpleQueue[_Waiter | None]) -> list[_Waiter | None]:
    """What is in a queue that this thread alone empties; waits for the first."""
    found = [queue.get()]
    while not queue.empty():
        found.append(queue.get())
    return found


def _answer(answered: tuple[Sequence[_Waiter], Future[Adapter | None]]) -> None:
    """Runs in the event loop. Who waits no more has cancelled."""
    waiting, found = answered
    for waiter in waiting:
        if waiter.done():
            continue
        if (error := found.exception()) is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(found.result())
