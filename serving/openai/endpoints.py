"""The way of a request for an answer of the model: read, prepare, ask, reply. Whatever happens, it gets one answer.

body ─► prepare, find its adapter (on other threads) ─► Exchange.ask ─► whole answer, or parts as they come ─► HttpReply
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from millrace.model_manager.wire.errors import MillraceError

from ..http.http_errors import HttpError, http_error, internal, not_in_time
from ..http.observers import Observed
from ..http.reading import Incoming
from ..http.replies import HttpReply, HungUp, Stalled, unless_hung_up
from ..http.waiting import Limits
from ..requests.exchanges import AnswerPart, End, Exchange, Question
from ..requests.service import Service
from .bodies import Body, decoded, ignored
from .naming import names_of, renamed

_Made = TypeVar("_Made")
_log = logging.getLogger(__name__)
_SHORT = 1024
"""Bytes of a body that is read in the event loop, mostly in a tenth of a millisecond."""
_FEW = 16
"""Most prompts, messages, tools or stop strings of such a body: each is work of its own."""
_HUNG_UP = 499
"""What the log says where a client did not wait for a status."""


class Answers(Protocol):
    """What a route makes of a body."""

    @property
    def questions(self) -> list[Question]:
        """What is asked of the engine."""

    @property
    def ignored(self) -> dict[str, str]:
        """The header that names fields without effect."""

    @property
    def is_stream(self) -> bool:
        """Whether parts are sent as they come."""

    def whole(self, ends: Sequence[End]) -> dict[str, Any]:
        """The whole answer."""


class StreamedAnswers(Answers, Protocol):
    """What a route makes of a body that may ask for a stream."""

    def parts(self, event: AnswerPart | End) -> Iterator[dict[str, Any]]:
        """What is sent for an event."""

    def last_parts(self, ends: Sequence[End]) -> list[dict[str, Any]]:
        """What is sent at the end."""


class Endpoint:
    """A route as an ASGI application: `handle` does the work, and here its errors become answers."""

    reply_kind: type[HttpReply] = HttpReply
    """The form of its answers."""

    def __init__(self, service: Service, route: str) -> None:
        self._service = service
        self._route = route
        self._limits = Limits(service.settings.request_timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        reply = self.reply_kind(scope, send, self._service.settings.stall_timeout)
        observed = Observed(self._route, headers=scope["headers"])
        self._service.observers.started(observed)
        try:
            await self._answer(scope, receive, reply, observed)
        finally:
            observed.status = reply.status or _HUNG_UP
            self._service.observers.finished(observed)

    async def _answer(self, scope: Scope, receive: Receive, reply: HttpReply, observed: Observed) -> None:
        try:
            with self._limits.limit():
                error = await self._error_of(scope, receive, reply, observed)
        except TimeoutError:
            error = not_in_time(self._service.settings.request_timeout)
        observed.error = error.code or "" if error is not None else observed.error
        try:
            if error is not None:
                await reply.fail(error)
        except (HungUp, Stalled):
            observed.error = "hung_up"

    async def _error_of(self, scope: Scope, receive: Receive, reply: HttpReply, observed: Observed) -> HttpError | None:
        """Do the work; returns the error that is still to be told."""
        client = self._service.client_of(scope)
        try:
            with self._service.body_memory.body(client) as body:
                await self._read_and_handle(body, scope, receive, reply, observed)
        except HttpError as error:
            return error.with_traceback(None)
        except (HungUp, Stalled) as error:
            observed.error = type(error).__name__.lower()
        except Exception:
            _log.exception("a request to %s failed", self._route)
            return internal()
        return None

    async def _read_and_handle(
        self, body: Incoming, scope: Scope, receive: Receive, reply: HttpReply, observed: Observed
    ) -> None:
        """A request counts once its body is there. Errors name the fields that the body has."""
        settings = self._service.settings
        await body.read(scope, receive, settings.most_bytes, settings.body_timeout)
        self._service.take_slot(body.client)
        try:
            await unless_hung_up(scope, self.handle(body, reply, observed))
        except (MillraceError, HttpError) as error:
            # Under a name here the error would hold this frame, and so the body, and be held by it.
            raise renamed(http_error(error) if isinstance(error, MillraceError) else error, body.names) from None
        finally:
            self._service.give_slot(body.client)

    async def handle(self, body: Incoming, reply: HttpReply, observed: Observed) -> None:
        """Answer a request whose body is read."""
        raise NotImplementedError

    def names(self, fields: Mapping[str, Any]) -> dict[str, str]:
        """Our names of parameters that a body has by others."""
        return names_of(fields, self._route)

    async def made(self, body: Incoming, make: Callable[[Mapping[str, Any], Service], _Made]) -> _Made:
        """What a function makes of the fields of a body; the body takes no memory then. Another thread reads what takes
        long; for what is short, handing it over takes longer.
        """

        def fields() -> dict[str, Any]:
            found = decoded(body.data())
            body.names = self.names(found)
            return found

        if body.size > _SHORT:
            made = await self._service.beside(lambda: make(fields(), self._service), body.client)
        elif _has_few(given := fields()):
            made = make(given, self._service)
        else:
            made = await self._service.beside(lambda: make(given, self._service), body.client)
        body.close()
        return made


class Computed(Endpoint):
    """A route whose answer the server itself computes."""

    def __init__(
        self,
        service: Service,
        route: str,
        make: Callable[[Mapping[str, Any], Service], dict[str, Any]],
        kind: type[Body],
    ) -> None:
        """`kind`: what its body is read as."""
        super().__init__(service, route)
        self._make = make
        self._kind = kind

    async def handle(self, body: Incoming, reply: HttpReply, observed: Observed) -> None:  # noqa: ARG002
        """See Endpoint."""

        def make(fields: Mapping[str, Any], service: Service) -> dict[str, Any]:
            reply.headers |= ignored(fields, self._kind)
            return self._make(fields, service)

        await reply.json(await self.made(body, make))


class ModelEndpoint(Endpoint):
    """A route whose answer the model gives."""

    def __init__(self, service: Service, route: str, prepare: Callable[[Mapping[str, Any], Service], Any]) -> None:
        """`prepare` makes Answers of a body; it may run on another thread."""
        super().__init__(service, route)
        self._prepare = prepare

    async def handle(self, body: Incoming, reply: HttpReply, observed: Observed) -> None:
        """See Endpoint. Whatever ends it, nothing of it is left in the engine."""
        answer = await self.made(body, self._prepare)
        adapter = None
        for question in answer.questions[:1]:  # all have the same constraint and adapter
            await self._service.check_constraint(question.constraint, body.client)
            adapter = await self._service.adapters.find(question.adapter)
        reply.headers |= answer.ignored
        exchange = Exchange(self._service, body.client)
        self._service.running.add(exchange)
        try:
            exchange.ask(answer.questions, stream=answer.is_stream, adapter=adapter)
            observed.stream = answer.is_stream
            ends = await (self._parts if answer.is_stream else self._whole)(answer, exchange, reply, observed)
        finally:
            self._service.running.discard(exchange)
            exchange.cancel()
        observed.prompt_tokens = sum(end.output.prompt_tokens for end in ends)
        observed.answers = exchange.answers(ends)
        observed.generated_tokens = sum(each.num_generated for each in observed.outputs)

    async def _whole(self, answer: Answers, exchange: Exchange, reply: HttpReply, _observed: Observed) -> list[End]:
        ends = await _ends(exchange, None)
        await reply.json(answer.whole(ends))
        return ends

    async def _parts(
        self, answer: StreamedAnswers, exchange: Exchange, reply: HttpReply, observed: Observed
    ) -> list[End]:
        async def tell(events: Sequence[AnswerPart | End]) -> None:
            self._service.observers.first_token(observed)
            await reply.events(part for event in events for part in answer.parts(event))

        ends = await _ends(exchange, tell)
        await reply.events(answer.last_parts(ends))
        await reply.end()
        return ends


def _has_few(fields: Mapping[str, Any]) -> bool:
    """Whether no field is a list of many, except of numbers."""
    for each in fields.values():
        if isinstance(each, list) and len(each) > _FEW and not isinstance(each[0], int):
            return False
    return True


async def _ends(exchange: Exchange, tell: Any) -> list[End]:
    """The whole answers in the order of the questions; `tell` is given all events as they come."""
    found: list[End] = []
    while exchange.is_open:
        events = await exchange.take()
        found += [event for event in events if isinstance(event, End)]
        if tell is not None:
            await tell(events)
    return sorted(found, key=lambda end: end.index)
