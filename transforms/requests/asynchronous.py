"""The DoFn behind Generate, Score, Embed, Extract and Classify: submits each element at once, emits each result as it
finishes.

A result leaves with the timestamp, windows and pane of its own element, from whichever call is next: a later
`process`, or `finish_bundle`, which drains. So a result commits with the bundle of its element, and a runner that
retries the bundle neither loses nor doubles anything: the requests have the same ids again. Those of a bundle that
failed go on, so that its retry finds them; what no bundle has asked for again by the end of the next one is
cancelled, or, where Beam throws a failed bundle's DoFn away, after a while. What is in flight is bounded by the
client's credits: `process` blocks without one, and the runner can still give away what has not been claimed. Where
the model changes while the job runs, each element ends with the model that it was submitted to, and its result says
so; that of a retried bundle too, if it is here that the bundle is tried again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from time import time as wall_clock
from typing import Any, Literal, NamedTuple, Protocol, Self, SupportsIndex

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

from millrace.model_manager.wire.errors import ErrorInfo, ModelReplaced, RequestError
from millrace.model_manager.wire.sampling import SamplingParams

from ..elements.completions import DEAD_LETTERS, Completion, DeadLetter, Prompt
from ..elements.metrics import RequestMetrics
from ..elements.near_misses import NearMisses
from ..elements.prompt_rows import RowShape
from ..elements.prompts import as_prompt, seeded, split_key, unusable_letter
from ..elements.task_results import Result
from ..models.changes import count_changes
from ..models.client import Client
from ..models.shared_client import Lease, SharedClient
from ..models.switch import ServedModel
from ..models.unmet_settings import count_unmet
from .retry_ids import RequestIds

OnFailure = Literal["dead_letter", "raise", "fail_fast"]
"""What a failed request becomes: a DeadLetter, or an error that fails the job. The error names the remedy, except with
`fail_fast`."""
REMEDY = "`.with_exception_handling()` on the transform sends failed prompts to a dead-letter output instead"


class Task(Protocol):
    """What is asked of each prompt. Pickled into the pipeline."""

    @property
    def result(self) -> type[Completion] | type[Result]:
        """The elements that come out."""

    @property
    def rows(self) -> RowShape:
        """Which columns of a mapping are which."""

    def asked(self, prompt: Prompt) -> Sequence[Any]:
        """What an answer depends on beside prompt and parameters; raises InvalidRequest where the row does not say."""

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        """See Client."""

    def element(self, prompt: Prompt, result: Any, model: str, revision: str) -> Completion | Result:
        """What the future gave, as an element, and which model gave it; raises RequestError for what is none."""


class _Asked(NamedTuple):
    """An element, and what is asked of the model about it."""

    prompt: Prompt
    params: SamplingParams
    keyed: tuple[Any, ...]
    element: WindowedValue


class InFlight(NamedTuple):
    """An element whose request is submitted, and to which model."""

    asked: _Asked
    future: Future[Any]
    served: ServedModel


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
        self._in_flight: dict[str, InFlight] = {}
        self._left: dict[str, InFlight] = {}

    def start_bundle(self) -> None:
        self._leave_running()  # of a bundle that failed, perhaps in another DoFn: this one was not told
        self._finished: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ids = RequestIds(self._job)

    def process(self, element: Any, windowed: Any = beam.DoFn.WindowedValueParam) -> Iterator[Any]:
        yield from self._submit(element, windowed)
        while not self._finished.empty():
            yield from self._result(self._finished.get())

    def finish_bundle(self) -> Iterator[Any]:
        while self._in_flight:
            yield from self._result(self._finished.get())
        self._cancel_left()
        if self._lease is not None:
            count_unmet(self._lease.unmet)
            count_changes(self._lease.switch.take_changes())

    def teardown(self) -> None:
        self._leave_running()
        if not self._left or not self._shared.retry_within:
            self._let_go()
            return
        later = threading.Timer(self._shared.retry_within, self._let_go)
        later.daemon = True
        later.start()

    def _let_go(self) -> None:
        self._cancel_left()
        if self._lease is not None:
            self._lease.end()
            self._lease = None

    def _submit(self, element: Any, windowed: WindowedValue) -> Iterator[Any]:
        """Yields only the failure of what cannot be submitted."""
        keyed, value = split_key(element)
        try:
            prompt = as_prompt(value, self._task.rows)
        except RequestError as error:
            yield self._failure(unusable_letter(value, error), keyed, windowed)
            return
        if isinstance(value, dict) and self._task.rows.row_params:  # a Prompt's columns are meant to be columns
            self._near_misses.look(prompt.columns)
        try:
            params = seeded(self._params.updated(prompt.params), prompt)
            request_id = self._ids.of(prompt, params, self._task.asked(prompt))
        except RequestError as error:
            yield self._failure(DeadLetter.of(prompt, error.info()), keyed, windowed)
            return
        assert request_id not in self._in_flight, "an id is used again only far apart"
        asked = _Asked(prompt, params, keyed, windowed)
        if (left := self._attached(request_id)) is not None:
            self._expect(request_id, InFlight(asked, left.future, left.served))
        else:
            yield from self._send(request_id, asked)

    def _attached(self, request_id: str) -> InFlight | None:
        """The request as a bundle that failed left it, with the model that it went to, unless it failed itself."""
        left = self._left.pop(request_id, None)
        if left is None:
            return None
        if left.future.cancelled() or (left.future.done() and left.future.exception() is not None):
            self._leased().finish(left.served)
            return None
        return left

    def _send(self, request_id: str, asked: _Asked) -> Iterator[Any]:
        """Yields only the failure of what can never run."""
        lease = self._leased()
        while True:
            served = lease.begin()  # the first call waits until the model is loaded
            self._metrics.active()
            try:
                future = self._task.submit(served.client, asked.prompt, asked.params, request_id)
            except ModelReplaced:
                lease.finish(served)
                lease.switch.wait_for_change(served)  # the next try is with the new one
            except RequestError as error:
                lease.finish(served)
                yield self._failed(asked, error, served)
                return
            except BaseException:
                lease.finish(served)
                raise
            else:
                self._expect(request_id, InFlight(asked, future, served))
                return

    def _expect(self, request_id: str, in_flight: InFlight) -> None:
        finished = self._finished
        self._in_flight[request_id] = in_flight
        in_flight.future.add_done_callback(lambda _: finished.put(request_id))

    def _leased(self) -> Lease:
        if self._lease is None:
            self._lease = self._shared.lease(self)
        return self._lease

    def _result(self, request_id: str) -> Iterator[Any]:
        asked, future, served = self._in_flight.pop(request_id)
        error = future.exception()
        self._metrics.active()
        try:
            if error is None:
                yield self._answered(asked, future.result(), served)
            elif isinstance(error, RequestError):
                yield self._failed(asked, error, served, error.partial)
            else:
                raise error  # the model's or the engine's: it concerns every element, and the runner decides
        finally:
            self._leased().finish(served)

    def _answered(self, asked: _Asked, answer: Any, served: ServedModel) -> Any:
        """The task's element, or the failure of an answer that it does not take."""
        try:
            result = self._task.element(asked.prompt, answer, served.name, served.revision)
        except RequestError as error:
            return self._failed(asked, error, served, getattr(answer, "text", ""))
        self._metrics.finished(result)
        return _output(result, asked.keyed, asked.element)

    def _failed(self, asked: _Asked, error: RequestError, served: ServedModel, answer: str = "") -> Any:
        letter = DeadLetter.of(asked.prompt, error.info(), served.name, served.revision, answer)
        return self._failure(letter, asked.keyed, asked.element)

    def _failure(self, letter: DeadLetter, keyed: tuple[Any, ...], element: WindowedValue) -> Any:
        self._metrics.failed()
        if self._on_failure == "dead_letter":
            return beam.pvalue.TaggedOutput(DEAD_LETTERS, _output(letter, keyed, element))
        told = f"prompt {letter.id}: {letter.reason}"
        if self._on_failure == "raise":
            told = f"{told}; {REMEDY}"
        raise ErrorInfo(kind=letter.error, message=told).exception()

    def _leave_running(self) -> None:
        self._left |= self._in_flight
        self._in_flight.clear()

    def _cancel_left(self) -> None:
        while self._left:
            left = self._left.popitem()[1]
            left.future.cancel()
            self._leased().finish(left.served)


class OwnWindows(tuple[Any, ...]):
    """Windows that stay as they are: Beam multiplies an output's by how many the current input has, another element."""

    __slots__ = ()

    def __imul__(self, _times: SupportsIndex) -> Self:
        return self


def _output(value: Any, keyed: tuple[Any, ...], element: WindowedValue) -> WindowedValue:
    output = element.with_value((*keyed, value) if keyed else value)
    output.windows = OwnWindows(element.windows)
    return output
