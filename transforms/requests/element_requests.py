"""An element as a request to the model, and what the request came to as an element: what the DoFns of a task share.

Knows no bundle and no state. Where the model changes while the job runs, each element ends with the model that it was
submitted to, and its result says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from time import time as wall_clock
from typing import Any, Literal, NamedTuple, Protocol, Self, SupportsIndex, TypeAlias

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

from millrace.model_manager.wire.errors import ErrorInfo, ModelReplaced, RequestError
from millrace.model_manager.wire.messages import Task as RequestTask
from millrace.model_manager.wire.sampling import SamplingParams

from ..elements.completions import DEAD_LETTERS, Completion, DeadLetter, Prompt
from ..elements.metrics import RequestMetrics
from ..elements.near_misses import NearMisses
from ..elements.prompt_rows import RowShape
from ..elements.prompts import as_prompt, seeded, split_key, unusable_letter
from ..elements.task_results import Result
from ..models.client import Client
from ..models.shared_model import Lease
from .retry_ids import RequestIds

OnFailure = Literal["dead_letter", "raise", "fail_fast"]
"""What a failed request becomes: a DeadLetter, or an error that fails the job. The error names the remedy, except with
`fail_fast`."""
REMEDY = "`.with_exception_handling()` on the transform sends failed prompts to a dead-letter output instead"

Emitted: TypeAlias = "WindowedValue | beam.pvalue.TaggedOutput"
"""A result or a dead letter, with the timestamp, windows and pane of its element."""


class Task(Protocol):
    """What is asked of each prompt. Pickled into the pipeline."""

    @property
    def result(self) -> type[Completion] | type[Result]:
        """The elements that come out."""

    @property
    def name(self) -> str:
        """As engines say whether they can."""

    @property
    def request(self) -> RequestTask:
        """What its requests ask of the engine."""

    @property
    def rows(self) -> RowShape:
        """Which columns of a mapping are which."""

    def asked(self, prompt: Prompt) -> Sequence[Any]:
        """What an answer depends on beside prompt and parameters; raises InvalidRequest where the row does not say."""

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        """See Client."""

    def element(self, prompt: Prompt, result: Any, model: str, revision: str) -> Completion | Result:
        """What the future gave, as an element, and which model gave it; raises RequestError for what is none."""


class Asked(NamedTuple):
    """An element, and what is asked of the model about it."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    keyed: tuple[Any, ...]
    element: WindowedValue


class InFlight(NamedTuple):
    """An element whose request is submitted, and to which client."""

    asked: Asked
    future: Future[Any]
    client: Client


class ElementRequests:
    """Requests of one task, with its parameters and its answer to failures. Pickled into the pipeline."""

    def __init__(self, task: Task, params: SamplingParams, on_failure: OnFailure, seeds: bool = True) -> None:
        """`seeds`: give rows seeds of their own, which the engine takes."""
        self._seeds = seeds
        self._task = task
        self._params = params
        self._on_failure = on_failure
        self._near_misses = NearMisses()
        self._built_at = wall_clock()

    def setup(self) -> None:
        """Called before everything else, in the worker."""
        self._metrics = RequestMetrics(self._built_at)

    def asked(self, element: Any, windowed: WindowedValue, ids: RequestIds) -> Asked | Emitted:
        """The request of an element, or the failure of one that is none."""
        keyed, value = split_key(element)
        try:
            prompt = as_prompt(value, self._task.rows)
        except RequestError as error:
            return self._failure(unusable_letter(value, error), keyed, windowed)
        if isinstance(value, dict) and self._task.rows.row_params:  # a Prompt's columns are meant to be columns
            self._near_misses.look(prompt.columns)
        try:
            params = self._params.updated(prompt.params)
            params = seeded(params, prompt) if self._seeds else params
            request_id = ids.of(prompt, params, self._task.asked(prompt))
        except RequestError as error:
            return self._failure(DeadLetter.of(prompt, error.info()), keyed, windowed)
        return Asked(request_id, prompt, params, keyed, windowed)

    def submit(self, lease: Lease, asked: Asked) -> InFlight | Emitted:
        """The request on its way, or the failure of what can never run; waits for a credit."""
        while True:
            client = lease.begin()  # the first call waits until the model is loaded
            self._metrics.active()
            try:
                future = self._task.submit(client, asked.prompt, asked.params, asked.request_id)
            except ModelReplaced:
                lease.finish(client)
                lease.switch.wait_for_change(client)  # the next try is with the new one
            except RequestError as error:
                lease.finish(client)
                return self._failed(asked, error, client)
            except BaseException:
                lease.finish(client)
                raise
            else:
                return InFlight(asked, future, client)

    def result(self, lease: Lease, in_flight: InFlight) -> Emitted:
        """What a finished request came to. An error of the model or the engine is raised: it concerns every element,
        and the runner decides.
        """
        asked, future, client = in_flight
        error = future.exception()
        self._metrics.active()
        try:
            if error is None:
                return self._answered(asked, future.result(), client)
            if isinstance(error, RequestError):
                return self._failed(asked, error, client, error.partial)
            raise error
        finally:
            lease.finish(client)

    def _answered(self, asked: Asked, answer: Any, client: Client) -> Emitted:
        """The task's element, or the failure of an answer that it does not take."""
        try:
            result = self._task.element(asked.prompt, answer, client.model, client.info.revision)
        except RequestError as error:
            return self._failed(asked, error, client, getattr(answer, "text", ""))
        self._metrics.finished(result)
        return _output(result, asked.keyed, asked.element)

    def _failed(self, asked: Asked, error: RequestError, client: Client, answer: str = "") -> Emitted:
        letter = DeadLetter.of(asked.prompt, error.info(), client.model, client.info.revision, answer)
        return self._failure(letter, asked.keyed, asked.element)

    def _failure(self, letter: DeadLetter, keyed: tuple[Any, ...], element: WindowedValue) -> Emitted:
        self._metrics.failed()
        if self._on_failure == "dead_letter":
            return beam.pvalue.TaggedOutput(DEAD_LETTERS, _output(letter, keyed, element))
        told = f"prompt {letter.id}: {letter.reason}"
        if self._on_failure == "raise":
            told = f"{told}; {REMEDY}"
        raise ErrorInfo(kind=letter.error, message=told).exception()


class OwnWindows(tuple[Any, ...]):
    """Windows that stay as they are: Beam multiplies an output's by how many the current input has, another element."""

    __slots__ = ()

    def __imul__(self, _times: SupportsIndex) -> Self:
        return self


def _output(value: Any, keyed: tuple[Any, ...], element: WindowedValue) -> WindowedValue:
    output = element.with_value((*keyed, value) if keyed else value)
    output.windows = OwnWindows(element.windows)
    return output
