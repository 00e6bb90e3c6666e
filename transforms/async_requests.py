"""The DoFn behind Generate, Score and Embed: submits each element at once, emits each result as it finishes.

A result leaves with the timestamp, windows and pane of its own element, from whichever call is next: a later `process`,
or `finish_bundle`, which drains. So a result commits with the bundle of its element, and a runner that retries the
bundle neither loses nor doubles anything: the requests have the same ids again. Those of a bundle that failed go on, so
that its retry finds them; what no bundle has asked for again by the end of the next one is cancelled. What is in flight
is bounded by the client's credits: `process` blocks without one, and the runner can still give away what has not been
claimed.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from time import time as wall_clock
from typing import Any, Literal, NamedTuple, Protocol, Self, SupportsIndex

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

from model_manager.wire.errors import ErrorInfo, RequestError
from model_manager.wire.messages import FinishReason
from model_manager.wire.sampling import SamplingParams
from transforms.client import Client, Lease, SharedClient
from transforms.elements import DEAD_LETTERS, Completion, DeadLetter, Prompt
from transforms.metrics import RequestMetrics
from transforms.near_misses import NearMisses
from transforms.prompts import as_prompt, seeded, split_key, unusable_letter
from transforms.request_ids import RequestIds
from transforms.task_elements import Embedded, Scored
from transforms.unmet_settings import count_unmet

OnFailure = Literal["emit", "dead_letter", "raise"]
"""What becomes of a request that failed: an element that has the error, a DeadLetter, or the end of the job."""


class Task(Protocol):
    """What is asked of each prompt. Pickled into the pipeline."""

    @property
    def result(self) -> type[Completion] | type[Scored] | type[Embedded]:
        """The elements that come out."""

    def asked(self, prompt: Prompt) -> Sequence[Any]:
        """What an answer depends on beside prompt and parameters; raises InvalidRequest where the row does not say."""

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        """See Client."""

    def element(self, prompt: Prompt, result: Any, model: str) -> Completion | Scored | Embedded:
        """What the future gave, as an element."""


class _InFlight(NamedTuple):
    prompt: Prompt
    keyed: tuple[Any, ...]
    element: WindowedValue
    future: Future[Any]


class AsyncRequestDoFn(beam.DoFn):
    """Prompts, or (key, prompt), → the task's results, keyed as they came."""

    def __init__(
        self, client: SharedClient, task: Task, params: SamplingParams, job: str, on_failure: OnFailure
    ) -> None:
        self._shared = client
        self._task = task
        self._params = params
        self._job = job
        self._on_failure = on_failure
        self._near_misses = NearMisses()
        self._built_at = wall_clock()
        self._lease: Lease | None = None

    def setup(self) -> None:
        self._metrics = RequestMetrics(self._built_at)
        self._in_flight: dict[str, _InFlight] = {}
        self._left: dict[str, Future[Any]] = {}

    def start_bundle(self) -> None:
        self._leave_running()  # of a bundle that failed, perhaps in another DoFn: this one was not told
        self._finished: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ids = RequestIds(self._job)

    def process(self, element: Any, windowed: Any = beam.DoFn.WindowedValueParam) -> Iterator[Any]:
        yield from self._submit(element, windowed)
        while not self._finished.empty():
            yield self._result(self._finished.get())

    def finish_bundle(self) -> Iterator[Any]:
        while self._in_flight:
            yield self._result(self._finished.get())
        self._cancel_left()
        if self._lease is not None:
            count_unmet(self._lease.client.unmet)

    def teardown(self) -> None:
        self._leave_running()
        self._cancel_left()
        if self._lease is not None:
            self._lease.end()
            self._lease = None

    def _submit(self, element: Any, windowed: WindowedValue) -> Iterator[Any]:
        """Yields only the failure of what cannot be submitted."""
        keyed, value = split_key(element)
        try:
            prompt = as_prompt(value)
        except RequestError as error:
            yield self._failure(unusable_letter(value, error), {}, keyed, windowed)
            return
        if isinstance(value, dict):  # a Prompt's columns are meant to be columns
            self._near_misses.look(prompt.columns)
        try:
            self._start(prompt, keyed, windowed)
        except RequestError as error:
            yield self._failure(DeadLetter.of(prompt, error.info()), prompt.columns, keyed, windowed)

    def _start(self, prompt: Prompt, keyed: tuple[Any, ...], windowed: WindowedValue) -> None:
        params = seeded(self._params.updated(prompt.params), prompt)
        request_id = self._ids.of(prompt, params, self._task.asked(prompt))
        finished = self._finished
        assert request_id not in self._in_flight, "an id is used again only far apart"
        future = self._attached(request_id) or self._sent(prompt, params, request_id)
        self._in_flight[request_id] = _InFlight(prompt, keyed, windowed, future)
        future.add_done_callback(lambda _: finished.put(request_id))

    def _attached(self, request_id: str) -> Future[Any] | None:
        """The request as a bundle that failed left it, unless it failed itself."""
        future = self._left.pop(request_id, None)
        if future is None or future.cancelled() or (future.done() and future.exception() is not None):
            return None
        return future

    def _sent(self, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        client = self._client()  # the first call waits until the model is loaded
        self._metrics.active()
        return self._task.submit(client, prompt, params, request_id)

    def _client(self) -> Client:
        if self._lease is None:
            self._lease = self._shared.lease(self)
        return self._lease.client

    def _result(self, request_id: str) -> Any:
        prompt, keyed, element, future = self._in_flight.pop(request_id)
        error = future.exception()
        self._metrics.active()
        if error is None:
            result = self._task.element(prompt, future.result(), self._shared.model_name)
            self._metrics.finished(result)
            return _output(result, keyed, element)
        if not isinstance(error, RequestError):
            raise error  # the model's or the engine's: it concerns every element, and the runner decides
        return self._failure(DeadLetter.of(prompt, error.info()), prompt.columns, keyed, element)

    def _failure(
        self, letter: DeadLetter, columns: dict[str, Any], keyed: tuple[Any, ...], element: WindowedValue
    ) -> Any:
        self._metrics.failed()
        info = ErrorInfo(kind=letter.error, message=letter.reason)
        if self._on_failure == "raise":
            raise ErrorInfo(kind=info.kind, message=f"prompt {letter.id}: {info.message}").exception()
        if self._on_failure == "dead_letter":
            return beam.pvalue.TaggedOutput(DEAD_LETTERS, _output(letter, keyed, element))
        model = self._shared.model_name
        failed = self._task.result(
            id=letter.id, finish_reason=FinishReason.ERROR, model=model, columns=columns, error=info
        )
        return _output(failed, keyed, element)

    def _leave_running(self) -> None:
        self._left |= {request_id: each.future for request_id, each in self._in_flight.items()}
        self._in_flight.clear()

    def _cancel_left(self) -> None:
        while self._left:
            self._left.popitem()[1].cancel()


class _OwnWindows(tuple[Any, ...]):
    """Windows that stay as they are: Beam multiplies an output's by how many the current input has, another element."""

    __slots__ = ()

    def __imul__(self, _times: SupportsIndex) -> Self:
        return self


def _output(value: Any, keyed: tuple[Any, ...], element: WindowedValue) -> WindowedValue:
    output = element.with_value((*keyed, value) if keyed else value)
    output.windows = _OwnWindows(element.windows)
    return output
