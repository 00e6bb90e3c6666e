"""A span for each request to an engine, made of times that travel with its result: neither manager nor engine knows
of spans.

Attributes follow OpenTelemetry's conventions for generative AI. No prompt and no answer is in a span. Imported only
where traces are on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from ..wire.request import Output, Request
from ..wire.timings import Setback
from .choices import SendStreamed
from .deltas import OnDelta

_OPERATIONS = {"generate": "text_completion", "score": "score", "embed": "embeddings"}
_PARAMETERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_k": "gen_ai.request.top_k",
    "top_p": "gen_ai.request.top_p",
    "seed": "gen_ai.request.seed",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
}
"""Sampling parameters, and the conventions' names for them."""
_NANOS = 10**9


class RequestSpans:
    """Makes the spans of one model's requests. The span that is current where a request is sent is their parent."""

    def __init__(self, tracer: Tracer, model: str) -> None:
        self._tracer = tracer
        self._model = model

    def send(self, send: SendStreamed, request: Request, on_delta: OnDelta | None = None) -> Future[Any]:
        """Send a request by `send`; its span begins now, and ends with the future."""
        span = self._tracer.start_span(
            f"{_operation(request)} {self._model}", kind=SpanKind.CLIENT, attributes=self._attributes(request)
        )
        if not span.is_recording():
            return send(request, on_delta)
        try:
            future = send(request, on_delta)
        except BaseException as error:
            _failed(span, error, time.time_ns(), time.time_ns())
            span.end()
            raise
        sent = time.time_ns()
        span.add_event("queued", timestamp=sent)
        future.add_done_callback(partial(self._ended, span, sent))
        return future

    def _attributes(self, request: Request) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": _operation(request),
            "gen_ai.provider.name": "millrace",
            "gen_ai.request.model": self._model,
            "gen_ai.request.stream": request.stream,
            "millrace.request.id": request.request_id,
            "millrace.job": request.job,
        }
        if request.task == "generate":
            given = {name: getattr(request.params, field) for field, name in _PARAMETERS.items()}
            attributes |= {name: value for name, value in given.items() if value is not None}
        return attributes

    def _ended(self, span: Span, sent: int, future: Future[Any]) -> None:
        """End a request's span with what became of the request. Runs on the client's own thread."""
        end = time.time_ns()
        try:
            if future.cancelled():
                span.set_attribute("error.type", "RequestAborted")
                span.set_status(StatusCode.ERROR)
            elif (error := future.exception()) is not None:
                _failed(span, error, sent, end)
            else:
                self._answered(span, future.result(), sent, end)
        finally:
            span.end(end)

    def _answered(self, span: Span, output: Output, sent: int, end: int) -> None:
        span.set_attributes(
            {
                "gen_ai.response.model": self._model,
                "gen_ai.response.id": output.request_id,
                "gen_ai.response.finish_reasons": [output.finish_reason.value],
                "gen_ai.usage.input_tokens": output.prompt_tokens,
                "gen_ai.usage.output_tokens": output.num_generated,
                "gen_ai.usage.cache_read.input_tokens": output.cached_tokens,
            }
        )
        taken = sent
        if any(setback.what == "manager_lost" for setback in output.setbacks):  # times come from the manager after it
            taken = max(sent, end - int(output.timings.finished * _NANOS))
        for name, at in _events(output, sent, taken):
            span.add_event(name, timestamp=max(sent, min(at, end)))


def _operation(request: Request) -> str:
    return "chat" if request.messages else _OPERATIONS[request.task]


def _events(output: Output, sent: int, taken: int) -> Iterator[tuple[str, int]]:
    """What happened to the request, in the order of time."""
    found = [("prefill", taken + int(output.timings.queued * _NANOS))]
    if output.num_generated:
        found.append(("decode", taken + int(output.timings.first_token * _NANOS)))
    found += (_placed(setback, sent, taken) for setback in output.setbacks)
    yield from sorted(found, key=lambda event: event[1])


def _placed(setback: Setback, sent: int, taken: int) -> tuple[str, int]:
    return setback.what, (sent if setback.what == "manager_lost" else taken) + int(setback.at * _NANOS)


def _failed(span: Span, error: BaseException, sent: int, end: int) -> None:
    """Its class alone: a message may quote the prompt."""
    for setback in getattr(error, "setbacks", ()):
        name, at = _placed(setback, sent, sent)
        span.add_event(name, timestamp=max(sent, min(at, end)))
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(StatusCode.ERROR)
