"""Gives requests to the engine's client. If the queue is empty and a credit is free, the caller sends. Else a thread
does, which may wait for a credit: the most urgent request first. Clients whose requests are as urgent take turns.

What its threads have to say crosses back into the event loop. Knows neither prompts nor HTTP: a submission is a
function that sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from millrace.model_manager.client.session import WouldWait

from .turns import Turns

_log = logging.getLogger(__name__)
_LAST = 2**62
"""Comes after every request's priority."""


SendSubmission = Callable[[bool], "Future[Any]"]
"""Sends a request; returns a future of its answer. The argument says whether it may wait; if not, it may raise
WouldWait."""


@dataclass(order=True)
class Submission:
    """A request that waits for its turn."""

    priority: int
    turn: int
    number: int
    send: SendSubmission | None = field(compare=False)
    sent: Callable[[Future[Any]], None] = field(compare=False)
    """Called with the future, on the thread that sends; with a failed one where `send` raised."""
    cancelled: bool = field(default=False, compare=False)
    future: Future[Any] | None = field(default=None, compare=False)


class Submitter:
    """A queue and its thread. Requests of equal priority are sent client by client, in turn; one client's in order
    of arrival.
    """

    def __init__(self, cancel: Callable[[str], None]) -> None:
        """`cancel` ends the request of an id, also while `send` waits for a credit."""
        self._cancel = cancel
        self._queue: queue.PriorityQueue[Submission] = queue.PriorityQueue()
        self._num_waiting = 0
        self._numbers = itertools.count()
        self._turns = Turns()
        self._lock = threading.Lock()
        self._canceller = ThreadPoolExecutor(1, thread_name_prefix="millrace-cancel")
        self._thread = threading.Thread(target=self._run, name="millrace-submit", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Submissions in the queue or being sent."""
        with self._lock:
            return self._num_waiting

    def put(
        self,
        priority: int,
        send: SendSubmission,
        sent: Callable[[Future[Any]], None],
        *,
        client: Hashable = None,
        count: int = 1,
        at_once: bool = False,
    ) -> Submission:
        """Queue a client's request for `count` answers; returns at once. `at_once`: send it here if that needs no
        waiting.
        """
        with self._lock:
            submission = Submission(priority, self._turns.next(client, count), next(self._numbers), send, sent)
            if at_once := at_once and not self._num_waiting:
                self._turns.serve(submission.turn)
            self._num_waiting += 1
        if not (at_once and self._submit(submission, send, may_wait=False)):
            context = copy_context()
            submission.send = lambda may_wait: context.run(send, may_wait)
            self._queue.put(submission)
        return submission

    def cancel(self, submission: Submission, request_id: str) -> None:
        """End a request, wherever it is; returns at once."""
        submission.cancelled = True  # before the client is told: `_submit` looks after it has sent
        self._canceller.submit(self._end, submission, request_id)

    def close(self) -> None:
        """Drop what is queued. The client is closed first, which ends a wait for a credit."""
        self._queue.put(Submission(-_LAST, 0, 0, None, lambda _: None))
        self._thread.join()
        self._canceller.shutdown(wait=True)

    def _end(self, submission: Submission, request_id: str) -> None:
        try:
            self._cancel(request_id)
            if submission.future is not None:
                submission.future.cancel()
        except Exception:
            _log.exception("a request could not be cancelled")

    def _run(self) -> None:
        while (submission := self._queue.get()).send is not None:
            with self._lock:
                self._turns.serve(submission.turn)
            if submission.cancelled:
                self._left()
            else:
                self._submit(submission, submission.send, may_wait=True)

    def _submit(self, submission: Submission, send: SendSubmission, *, may_wait: bool) -> bool:
        """Whether it was sent; False if it may not wait and would have to."""
        try:
            future = send(may_wait)
        except WouldWait:
            return False
        except Exception as error:  # whatever it is, it is this request's
            future = Future()
            future.set_exception(error)
        self._left()
        submission.future = future
        if submission.cancelled:
            future.cancel()
        submission.sent(future)
        return True

    def _left(self) -> None:
        with self._lock:
            self._num_waiting -= 1


class Crossing:
    """Calls functions in the loop, in the order in which threads asked for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: list[tuple[Callable[[Any], None], Any]] = []
        self._is_woken = False

    def call(self, function: Callable[[Any], None], value: Any) -> None:
        """Have the loop call `function(value)` soon; from any thread."""
        with self._lock:
            self._waiting.append((function, value))
            if self._is_woken:
                return
            self._is_woken = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._is_woken = False
        for function, value in waiting:
            function(value)
