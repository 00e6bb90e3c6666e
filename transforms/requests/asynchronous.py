"""The DoFn behind Generate, Score, Embed, Extract and Classify: submits each element at once, emits each result as it
finishes.

A result leaves with the timestamp, windows and pane of its own element, from whichever call is next: a later
`process`, or `finish_bundle`, which drains. So a result commits with the bundle of its element, and a runner that
retries the bundle neither loses nor doubles anything: the requests have the same ids again. Those of a bundle that
failed go on, so that its retry finds them; what no bundle has asked for again by the end of the next one is
cancelled, or, where Beam throws a failed bundle's DoFn away, after a while. What is in flight is bounded by the
client's credits: `process` blocks without one, and the runner can still give away what has not been claimed. Where
the model has changed since, the retry of a bundle still finds its requests, and their results name the model of then,
if the bundle is tried again in this process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from millrace.model_manager.wire.sampling import SamplingParams

from ..models.shared_model import Lease, SharedModel
from ..models.summary_counters import count
from .element_requests import Asked, ElementRequests, Emitted, InFlight, OnFailure, Task
from .retry_ids import RequestIds


class AsyncRequestDoFn(beam.DoFn):
    """Prompts, or (key, prompt), → the task's results, keyed as they came."""

    def __init__(self, model: SharedModel, task: Task, params: SamplingParams, job: str, on_failure: OnFailure) -> None:
        self._model = model
        self._requests = ElementRequests(task, params, on_failure, model.seeds)
        self._job = job
        self._lease: Lease | None = None

    def setup(self) -> None:
        self._requests.setup()
        self._in_flight: dict[str, InFlight] = {}
        self._left: dict[str, InFlight] = {}

    def start_bundle(self) -> None:
        self._leave_running()  # of a bundle that failed, perhaps in another DoFn: this one was not told
        self._finished: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ids = RequestIds(self._job)

    def process(self, element: Any, windowed: Any = beam.DoFn.WindowedValueParam) -> Iterator[Any]:
        asked = self._requests.asked(element, windowed, self._ids)
        if isinstance(asked, Asked):
            submitted = self._attached(asked) or self._requests.submit(self._leased(), asked)
            if isinstance(submitted, InFlight):
                self._expect(submitted)
            else:
                yield submitted
        else:
            yield asked
        while not self._finished.empty():
            yield self._next_result()

    def finish_bundle(self) -> Iterator[Any]:
        while self._in_flight:
            yield self._next_result()
        self._cancel_left()
        if self._lease is not None:
            count(self._lease)

    def teardown(self) -> None:
        self._leave_running()
        if not self._left or not self._model.retry_within:
            self._let_go()
            return
        later = threading.Timer(self._model.retry_within, self._let_go)
        later.daemon = True
        later.start()

    def _let_go(self) -> None:
        self._cancel_left()
        if self._lease is not None:
            self._lease.end()
            self._lease = None

    def _leased(self) -> Lease:
        if self._lease is None:
            self._lease = self._model.lease(self)
        return self._lease

    def _attached(self, asked: Asked) -> InFlight | None:
        """The request as a bundle that failed left it, with the model that it went to, unless it failed itself."""
        left = self._left.pop(asked.request_id, None)
        if left is None:
            return None
        if left.future.cancelled() or (left.future.done() and left.future.exception() is not None):
            self._leased().finish(left.client)
            return None
        return left._replace(asked=asked)

    def _expect(self, in_flight: InFlight) -> None:
        request_id, finished = in_flight.asked.request_id, self._finished
        assert request_id not in self._in_flight, "an id is used again only far apart"
        self._in_flight[request_id] = in_flight
        in_flight.future.add_done_callback(lambda _: finished.put(request_id))

    def _next_result(self) -> Emitted:
        return self._requests.result(self._leased(), self._in_flight.pop(self._finished.get()))

    def _leave_running(self) -> None:
        self._left |= self._in_flight
        self._in_flight.clear()

    def _cancel_left(self) -> None:
        while self._left:
            left = self._left.popitem()[1]
            left.future.cancel()
            self._leased().finish(left.client)
