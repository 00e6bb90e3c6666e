"""Spans of requests, made of what comes back: whose children they are, what is in them, and what is not."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import use_span

from millrace.model_manager.client.request_spans import RequestSpans
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Setback, Timings

SECRET = "the secret of the prompt"
REQUEST = Request(
    "id-1", [1, 2, 3], SamplingParams(max_tokens=7, temperature=0.5, seed=11, stop=(SECRET,)), job="j", text=SECRET
)


AT_ONCE = Timings(queued=0.0, first_token=0.0, finished=0.0)


def output(timings: Timings = AT_ONCE, **more: Any) -> Output:
    return Output("id-1", [5, 6], FinishReason.STOP, timings, 3, cached_tokens=1, text=SECRET, **more)


class Traced:
    """A tracer whose spans stay in memory, and the spans that have ended."""

    def __init__(self) -> None:
        self.memory = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.tracer = provider.get_tracer("test")
        self.spans = RequestSpans(self.tracer, "org/model")

    def send(self, future: Future[Any], request: Request = REQUEST) -> Future[Any]:
        return self.spans.send(lambda _request, _on_delta: future, request)

    def ended(self) -> list[ReadableSpan]:
        return list(self.memory.get_finished_spans())


@pytest.fixture
def traced() -> Traced:
    return Traced()


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def names(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def test_a_span_has_the_conventions_attributes_and_no_text(traced: Traced) -> None:
    future: Future[Output] = Future()
    assert traced.send(future) is future
    assert not traced.ended()
    future.set_result(output())
    (span,) = traced.ended()
    assert span.name == "text_completion org/model"
    assert about(span) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "millrace",
        "gen_ai.request.model": "org/model",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 11,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.response.model": "org/model",
        "gen_ai.response.id": "id-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "millrace.request.id": "id-1",
        "millrace.job": "j",
    }
    assert SECRET not in span.to_json()


def test_a_request_is_below_the_span_that_is_current_where_it_is_sent(traced: Traced) -> None:
    future: Future[Output] = Future()
    row = traced.tracer.start_span("row")
    with use_span(row):
        traced.send(future)
    future.set_result(output())
    (span,) = traced.ended()
    assert span.parent is not None
    assert span.parent.span_id == row.get_span_context().span_id
    assert span.parent.trace_id == row.get_span_context().trace_id


def test_events_stand_in_the_order_of_time_and_within_the_span(traced: Traced) -> None:
    future: Future[Output] = Future()
    traced.send(future)
    far = [Setback("engine_died", 1.5), Setback("sent_again", 0.0)]
    future.set_result(output(Timings(queued=2.0, first_token=3.0, finished=4.0), setbacks=far))
    (span,) = traced.ended()
    assert names(span) == ["queued", "sent_again", "engine_died", "prefill", "decode"]
    times = [event.timestamp for event in span.events]
    assert times == sorted(times)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= times[0]
    assert times[-1] <= span.end_time


def test_times_of_a_request_that_was_sent_again_are_of_the_last_manager(traced: Traced) -> None:
    future: Future[Output] = Future()
    traced.send(future)
    future.set_result(output(AT_ONCE, setbacks=[Setback("manager_lost", 0.0)]))
    (span,) = traced.ended()
    assert names(span) == ["queued", "manager_lost", "prefill", "decode"]
    assert span.events[-1].timestamp == span.end_time


def test_what_gives_no_tokens_has_no_decoding(traced: Traced) -> None:
    future: Future[Output] = Future()
    traced.send(future, Request("e", [1], SamplingParams(), task="embed"))
    future.set_result(Output("e", [], FinishReason.STOP, AT_ONCE, 1))
    (span,) = traced.ended()
    assert (span.name, names(span)) == ("embeddings org/model", ["queued", "prefill"])
    assert "gen_ai.request.max_tokens" not in about(span)


def test_a_failed_request_has_its_errors_class_and_what_held_it_up(traced: Traced) -> None:
    future: Future[Output] = Future()
    traced.send(future)
    error = InvalidRequest(f"{SECRET}: is not taken")
    error.setbacks = (Setback("engine_died", 0.0),)
    future.set_exception(error)
    (span,) = traced.ended()
    assert not span.status.is_ok
    assert about(span)["error.type"] == "InvalidRequest"
    assert names(span) == ["queued", "engine_died"]
    assert SECRET not in span.to_json()


def test_a_cancelled_request_and_one_that_is_not_sent_end_their_spans(traced: Traced) -> None:
    future: Future[Output] = Future()
    traced.send(future)
    future.cancel()

    def refuses(_request: Request, _on_delta: Any) -> Future[Any]:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        traced.spans.send(refuses, REQUEST)
    assert [about(span)["error.type"] for span in traced.ended()] == ["RequestAborted", "InvalidRequest"]


def test_a_request_that_is_not_sampled_costs_no_callback() -> None:
    tracer = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("test")
    future: Future[Output] = Future()
    assert RequestSpans(tracer, "m").send(lambda *_: future, REQUEST) is future
    assert not future._done_callbacks  # type: ignore[attr-defined]
