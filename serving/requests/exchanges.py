"""One HTTP request's questions to the engine, and what comes back of them into the event loop. Knows no HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

import msgspec

from millrace.model_manager.client.deltas import Delta
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import MillraceError, RequestAborted
from millrace.model_manager.wire.request import Adapter, Output

from ..http.http_errors import HttpError
from ..http.observers import ObservedAnswer
from .ids import new_id
from .service import Service
from .submitting import Submission

MOST_UNREAD = 4 * 2**20
"""Characters, with log-probabilities reckoned in, that a stream may hold while its client does not read."""
_PER_LOGPROB = 64

_AT_ONCE = 16
"""Most questions of a request that are sent from the event loop, each in less than a tenth of a millisecond."""

Asker = Callable[[EngineClient, str, Callable[[Delta], None] | None, Adapter | None, bool], "Future[Output]"]
"""Submits a question under an id, with its adapter; the callback, if there is one, gets its deltas. The last argument:
may it wait.
"""


class Question(msgspec.Struct, frozen=True):
    """One prompt to be submitted; it gets `count` answers, and each is held to the constraint."""

    ask: Asker
    priority: int
    count: int = 1
    constraint: Constraint | None = None
    prompt_tokens: int = 0
    """Tokens of the prompt, 0 where the engine has the tokenizer."""
    adapter: str = ""
    """Path of the LoRA adapter; empty for the model alone."""


class AnswerPart(msgspec.Struct, frozen=True):
    """A part of answer `index`, counted over all questions."""

    index: int
    delta: Delta


class End(msgspec.Struct, frozen=True):
    """A question's whole answer; `index` of its first choice, counted over all questions."""

    index: int
    output: Output
    at: float = msgspec.field(default_factory=time.monotonic)
    """When it was there."""

    @property
    def choices(self) -> tuple[Output, ...]:
        """All answers to the question."""
        return self.output.choices or (self.output,)


class Exchange:
    """The questions of one request. All but the callbacks runs in the event loop."""

    def __init__(self, service: Service, client: Hashable = None) -> None:
        """`client` takes turns with others."""
        self._service = service
        self._client = client
        self._outstanding: dict[int, tuple[Submission, str]] = {}
        """Questions that are not answered, by the index of their first answers."""
        self._events: list[AnswerPart | End] = []
        self._first_parts: dict[int, float] = {}
        """When each answer of a stream had its first part."""
        self._unread = 0
        self._error: BaseException | None = None
        self._news: asyncio.Future[None] | None = None
        """The reader waits for this until an event comes."""

    @property
    def is_open(self) -> bool:
        """Whether more is to come."""
        return bool(self._outstanding or self._events)

    def ask(self, questions: list[Question], *, stream: bool, adapter: Adapter | None = None) -> None:
        """Submit all, with the adapter that was found for them; returns at once.

        Raises EngineError while no model is loaded, and HttpError (400) for more answers than the server gives at once.
        """
        most = self._service.settings.max_inflight
        if (answers := sum(question.count for question in questions)) > most:
            said = (
                f"n: the request asks for {answers} answers: takes at most {most}, n for each prompt (--max_inflight)"
            )
            raise HttpError(400, said, param="n", code="too_many_answers")
        client, index = self._service.engine.client, 0
        for question in questions:
            request_id = new_id("serve-")
            on_delta = partial(self._service.crossing.call, partial(self._piece, index)) if stream else None
            submission = self._service.submitter.put(
                question.priority,
                partial(question.ask, client, request_id, on_delta, adapter),
                partial(self._sent, index),
                client=self._client,
                count=question.count,
                at_once=len(questions) <= _AT_ONCE and question.count == 1,
            )
            self._outstanding[index] = submission, request_id
            index += question.count
        self._service.flush_soon()

    async def take(self) -> list[AnswerPart | End]:
        """What has come, one or more, in order. Raises the error of the first question that failed."""
        if not self._events and self._error is None:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if self._error is not None:
            raise self._error
        events, self._events = self._events, []
        self._unread = 0
        return events

    def answers(self, ends: Iterable[End]) -> tuple[ObservedAnswer, ...]:
        """The answers of ended questions with their times. Of several answers to one question all come with the last;
        each ended as much earlier as its client had it earlier.
        """
        found = []
        for end in ends:
            longest = max(each.latency for each in end.choices)
            for index, output in enumerate(end.choices, end.index):
                ended = end.at - (longest - output.latency)
                found.append(ObservedAnswer(output, ended, self._first_parts.get(index)))
        return tuple(found)

    def cancel(self) -> None:
        """End what is not answered yet, wherever it is; returns at once."""
        for submission, request_id in self._outstanding.values():
            self._service.submitter.cancel(submission, request_id)
        self._outstanding.clear()
        self._error, self._events = None, []  # its traceback would hold the exchange, and so the prompt

    def abort(self) -> None:
        """Have `take` raise RequestAborted, as the server ends."""
        self._fail(RequestAborted("the server ends"))
        self._tell()

    def _sent(self, index: int, future: Future[Any]) -> None:
        """Have the answer's end told to the event loop. Runs on the thread that sends."""
        future.add_done_callback(partial(self._service.crossing.call, partial(self._ended, index)))

    def _piece(self, index: int, delta: Delta) -> None:
        self._events.append(AnswerPart(index + delta.index, delta))
        if index + delta.index not in self._first_parts:
            self._first_parts[index + delta.index] = time.monotonic()
        self._unread += len(delta.text) + _PER_LOGPROB * (len(delta.token_ids) if delta.logprobs is not None else 0)
        if self._unread > MOST_UNREAD:
            self._fail(RequestAborted("the client does not read its answer"))
        self._tell()

    def _ended(self, index: int, future: Future[Any]) -> None:
        self._outstanding.pop(index, None)
        try:
            self._events.append(End(index, future.result()))
        except CancelledError:
            self._fail(RequestAborted("cancelled"))
        except Exception as error:
            self._fail(error)
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """The first error counts; one of ours is what a client is told."""
        if self._error is None or not isinstance(self._error, MillraceError):
            self._error = error
