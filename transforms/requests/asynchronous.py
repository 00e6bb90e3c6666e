"""The DoFn behind Generate, Score, Embed, Extract and Classify: submits each element at once, emits each result as it
finishes.

A result is emitted with the timestamp, windows and pane of its own element, by a later `process` or by
`finish_bundle`, which waits for all results. So a result commits with the bundle of its element. When a runner retries
a bundle, its requests have the same ids again, so nothing is lost or computed twice.

Requests of a failed bundle go on, so that the retry finds them. They are cancelled if no bundle has asked for them by
the end of the next bundle; where Beam throws away the DoFn of a failed bundle, after `retry_within` seconds. A retry
in the same process finds its requests even if the model has changed since, and their results name the earlier model.

The client's credits bound the requests in flight: `process` blocks without one, and the runner can still move the
elements that were not claimed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import apache_beam as beam

from millrace.model_manager.wire.sampling import SamplingParams

from ..models.shared_model import Lease, SharedModel
from ..models.summary_counters import count
from .element_requests import ElementRequests, Emitted, InFlight, OnFailure, PreparedRequest, Task
from .retry_ids import RequestIds


class AsyncRequestDoFn(beam.DoFn):
    """Prompts, or (key, prompt), → the task's results, keyed as they came."""

    def __init__(
        self,
        model: SharedModel,
        task: Task,
        params: SamplingParams,
        job: str,
        on_failure: OnFailure,
        others: Mapping[str, SharedModel] = MappingProxyType({}),
    ) -> None:
        """`others`: further models, by the names that elements give them."""
        self._model = model
        self._others = dict(others)
        names = (model.name, *others) if others else ()
        self._requests = ElementRequests(task, params, on_failure, model.seeds, model.traces, names)
        self._job = job
        self._leases: dict[str, Lease] = {}

    def setup(self) -> None:
        self._requests.setup()
        self._in_flight: dict[str, InFlight] = {}
        self._left: dict[str, InFlight] = {}

    def start_bundle(self) -> None:
        self._leave_running()  # of a bundle that failed, perhaps in another DoFn: this one was not told
        self._finished: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ids = RequestIds(self._job)

    def process(self, element: Any, windowed: Any = beam.DoFn.WindowedValueParam) -> Iterator[Any]:
        prepared = self._requests.prepare(element, windowed, self._ids)
        if isinstance(prepared, PreparedRequest):
            submitted = self._attached(prepared) or self._requests.submit(self._leased(prepared.model), prepared)
            if isinstance(submitted, InFlight):
                self._expect(submitted)
            else:
                yield submitted
        else:
            yield prepared
        while not self._finished.empty():
            yield self._next_result()

    def finish_bundle(self) -> Iterator[Any]:
        while self._in_flight:
            yield self._next_result()
        self._cancel_left()
        for lease in self._leases.values():
            count(lease)

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
        while self._leases:
            self._leases.popitem()[1].end()

    def _leased(self, model: str = "") -> Lease:
        if model not in self._leases:
            self._leases[model] = self._others.get(model, self._model).lease(self)
        return self._leases[model]

    def _attached(self, request: PreparedRequest) -> InFlight | None:
        """The same request, still in flight or done, of a bundle that failed; None if there is none or it failed."""
        left = self._left.pop(request.request_id, None)
        if left is None:
            return None
        if left.future.cancelled() or (left.future.done() and left.future.exception() is not None):
            self._leased(request.model).finish(left.client)
            return None
        return self._requests.taken_over(left, request)

    def _expect(self, in_flight: InFlight) -> None:
        request_id, finished = in_flight.request.request_id, self._finished
        assert request_id not in self._in_flight, "an id is used again only far apart"
        self._in_flight[request_id] = in_flight
        in_flight.future.add_done_callback(lambda _: finished.put(request_id))

    def _next_result(self) -> Emitted:
        finished = self._in_flight.pop(self._finished.get())
        return self._requests.result(self._leased(finished.request.model), finished)

    def _leave_running(self) -> None:
        self._left |= self._in_flight
        self._in_flight.clear()

    def _cancel_left(self) -> None:
        while self._left:
            left = self._left.popitem()[1]
            left.future.cancel()
            self._leased(left.request.model).finish(left.client)
