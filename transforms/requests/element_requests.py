"""Makes a request to the model of each input element, and an output element of each answer; all DoFns of a task use it.

Knows no bundle and no state. If the model changes while the job runs, each request is answered by the model that it
was submitted to, and its result names that model.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from time import time as wall_clock
from typing import Any, Literal, NamedTuple, Protocol, Self, SupportsIndex, TypeAlias

import apache_beam as beam
import msgspec
from apache_beam.utils.windowed_value import WindowedValue

from millrace.model_manager.wire.errors import ErrorInfo, ModelReplaced, RequestError
from millrace.model_manager.wire.request import Output, RequestTask
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.traces import Traces

from ..elements.beam_metrics import RequestMetrics
from ..elements.completions import DEAD_LETTERS, Completion, DeadLetter, Prompt
from ..elements.near_misses import NearMisses
from ..elements.prompt_rows import RowShape
from ..elements.prompts import as_prompt, seeded, split_key, unusable_dead_letter
from ..elements.recent_rows import tell_answered, tell_failed
from ..elements.task_results import Result
from ..models.client import Client
from ..models.model_names import chosen
from ..models.shared_model import Lease
from .retry_ids import RequestIds
from .row_spans import OpenRow, row_spans

OnFailure = Literal["dead_letter", "raise", "fail_fast"]
"""What a failed request becomes: a DeadLetter, or an error that fails the job. The error names the remedy, except with
`fail_fast`."""
REMEDY = "`.with_exception_handling()` on the transform sends failed prompts to a dead-letter output instead"

Emitted: TypeAlias = "WindowedValue | beam.pvalue.TaggedOutput"
"""A result or a dead letter, with the timestamp, windows and pane of its element."""


class Task(Protocol):
    """What a transform does with each prompt: generate, score, embed, … Pickled into the pipeline."""

    @property
    def result(self) -> type[Completion] | type[Result]:
        """The class of the output elements."""

    @property
    def name(self) -> str:
        """The task by the name under which wire/backends.py says which engines can do it."""

    @property
    def request(self) -> RequestTask:
        """The task that its requests name to the engine."""

    @property
    def rows(self) -> RowShape:
        """Which column of a row holds the prompt, the id and so on."""

    def id_parts(self, prompt: Prompt) -> Sequence[Any]:
        """What an answer depends on beside prompt and parameters, for the request's id.

        Raises InvalidRequest if the row lacks it.
        """

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        """Submit the task's request; see Client."""

    def element(self, prompt: Prompt, result: Any, model: str, revision: str) -> Completion | Result:
        """The future's result as an output element that names its model.

        Raises RequestError for an answer that makes no element.
        """


class PreparedRequest(NamedTuple):
    """A request that was made of an element and is ready to be submitted."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    key_part: tuple[Any, ...]
    """(key,) for an element that is a pair of key and prompt, () for a prompt alone."""
    element: WindowedValue
    model: str = ""
    """Name of the model that it goes to; empty if the transform has one model."""


class InFlight(NamedTuple):
    """A request that is submitted, and the client that it was submitted to."""

    request: PreparedRequest
    future: Future[Any]
    client: Client
    row: OpenRow = None
    """Its span, where traces are on."""


class ElementRequests:
    """Makes and submits the requests of one task, and makes elements of the answers. Pickled into the pipeline."""

    def __init__(
        self,
        task: Task,
        params: SamplingParams,
        on_failure: OnFailure,
        seeds: bool = True,
        traces: Traces | None = None,
        models: Sequence[str] = (),
    ) -> None:
        """`seeds`: True if the engine takes seeds; then each row gets one of its own. `models`: models that rows may
        name in their column `model`; a row that names none goes to the first. Without models the column is like any
        other.
        """
        self._models = models
        self._traces = traces
        self._seeds = seeds
        self._task = task
        self._params = params
        self._on_failure = on_failure
        self._near_misses = NearMisses()
        self._built_at = wall_clock()

    def setup(self) -> None:
        """Call it first, in the worker."""
        self._metrics = RequestMetrics(self._built_at)
        self._rows = row_spans(self._traces, self._task.name)

    def prepare(self, element: Any, windowed: WindowedValue, ids: RequestIds) -> PreparedRequest | Emitted:
        """The request of an element; a dead letter if the element is no valid prompt."""
        key_part, value = split_key(element)
        try:
            prompt = as_prompt(value, self._task.rows)
        except RequestError as error:
            return self._dead_letter_or_raise(unusable_dead_letter(value, error), key_part, windowed)
        if isinstance(value, dict) and self._task.rows.row_params:  # a Prompt's columns are meant to be columns
            self._near_misses.look(prompt.columns)
        try:
            params = self._params.updated(prompt.params)
            params = seeded(params, prompt) if self._seeds else params
            model = chosen(prompt.columns, self._models) if self._models else ""
            named = ("model", model) if model and model != self._models[0] else ()
            request_id = ids.of(prompt, params, (*self._task.id_parts(prompt), *named))
        except RequestError as error:
            return self._dead_letter_or_raise(DeadLetter.of(prompt, error.info()), key_part, windowed)
        return PreparedRequest(request_id, prompt, params, key_part, windowed, model)

    def submit(self, lease: Lease, request: PreparedRequest) -> InFlight | Emitted:
        """Wait for a credit and submit the request; a dead letter if the request can never run."""
        row = self._rows.begin(request.prompt.id, request.request_id)
        with self._rows.within(row):
            submitted = self._submit(lease, request)
        if isinstance(submitted, InFlight):
            return submitted._replace(row=row)
        self._rows.end(row)
        return submitted

    def taken_over(self, left: InFlight, request: PreparedRequest) -> InFlight:
        """The same request of a bundle that failed, as the request of its retry."""
        self._rows.retried(left.row)
        return left._replace(request=request)

    def _submit(self, lease: Lease, request: PreparedRequest) -> InFlight | Emitted:
        while True:
            client = lease.begin()  # the first call waits until the model is loaded
            self._metrics.active()
            try:
                future = self._task.submit(client, request.prompt, request.params, request.request_id)
            except ModelReplaced:
                lease.finish(client)
                lease.switch.wait_for_change(client)  # the next try is with the new one
            except RequestError as error:
                lease.finish(client)
                return self._request_failed(request, error, client)
            except BaseException:
                lease.finish(client)
                raise
            else:
                return InFlight(request, future, client)

    def result(self, lease: Lease, in_flight: InFlight) -> Emitted:
        """The output element of a finished request. Raises an error of the model or the engine: it concerns every
        element, so the runner decides whether to retry.
        """
        with self._rows.within(in_flight.row):
            emitted = self._result(lease, in_flight)
        self._rows.end(in_flight.row)
        return emitted

    def _result(self, lease: Lease, in_flight: InFlight) -> Emitted:
        request, future, client, _ = in_flight
        error = future.exception()
        self._metrics.active()
        try:
            if error is None:
                return self._answered(request, future.result(), client)
            if isinstance(error, RequestError):
                return self._request_failed(request, error, client, error.partial)
            raise error
        finally:
            lease.finish(client)

    def _answered(self, request: PreparedRequest, answer: Any, client: Client) -> Emitted:
        """The task's output element; a dead letter if the task rejects the answer."""
        try:
            result = self._task.element(request.prompt, answer, client.model, client.info.revision)
        except RequestError as error:
            return self._request_failed(request, error, client, getattr(answer, "text", ""))
        result = msgspec.structs.replace(result, prompt_hash=request.prompt.prompt_hash)
        self._metrics.finished(result, _recomputed(answer))
        tell_answered(result)
        return _output(result, request.key_part, request.element)

    def _request_failed(
        self, request: PreparedRequest, error: RequestError, client: Client, answer: str = ""
    ) -> Emitted:
        dead_letter = DeadLetter.of(request.prompt, error.info(), client.model, client.info.revision, answer)
        return self._dead_letter_or_raise(dead_letter, request.key_part, request.element)

    def _dead_letter_or_raise(
        self, dead_letter: DeadLetter, key_part: tuple[Any, ...], element: WindowedValue
    ) -> Emitted:
        """The dead letter as an output element, or its error raised, as `on_failure` says."""
        self._metrics.failed(dead_letter.error)
        self._rows.failed(dead_letter.error)
        tell_failed(dead_letter)
        if self._on_failure == "dead_letter":
            return beam.pvalue.TaggedOutput(DEAD_LETTERS, _output(dead_letter, key_part, element))
        message = f"prompt {dead_letter.id}: {dead_letter.reason}"
        if self._on_failure == "raise":
            message = f"{message}; {REMEDY}"
        raise ErrorInfo(kind=dead_letter.error, message=message).exception()


def _recomputed(answer: Output | Sequence[Output]) -> int:
    answers = [answer] if isinstance(answer, Output) else answer
    return sum(choice.recomputed_tokens for each in answers for choice in each.choices or (each,))


class OwnWindows(tuple[Any, ...]):
    """Windows that keep their number. Beam multiplies an output's windows by the number of windows of the current
    input, which is another element here.
    """

    __slots__ = ()

    def __imul__(self, _times: SupportsIndex) -> Self:
        return self


def _output(value: Any, key_part: tuple[Any, ...], element: WindowedValue) -> WindowedValue:
    output = element.with_value((*key_part, value) if key_part else value)
    output.windows = OwnWindows(element.windows)
    return output
