"""A span for each HTTP request; a caller's `traceparent` makes it part of the caller's trace. Imported where traces
are on.
"""

from __future__ import annotations

from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from millrace.model_manager.client.trace_export import tracer
from millrace.model_manager.wire.traces import Traces

from .http.observers import Observed

_PARENT = ("traceparent", "tracestate")


class RequestTraces:
    """An Observer. What a request's task sends to the engine is below the request's span."""

    def __init__(self, traces: Traces) -> None:
        self._tracer = tracer(traces)
        self._propagator = TraceContextTextMapPropagator()
        self._spans: dict[int, Span] = {}

    def started(self, request: Observed) -> None:
        """See Observer. Called in the request's own task, whose context is its own."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        caller = self._propagator.extract({name: headers[name] for name in _PARENT if name in headers})
        about = {"http.request.method": "POST", "http.route": request.route, "url.path": request.route}
        span = self._tracer.start_span(f"POST {request.route}", caller, SpanKind.SERVER, about)
        self._spans[id(request)] = span
        context.attach(trace.set_span_in_context(span))

    def first_token(self, request: Observed) -> None:
        """See Observer."""
        self._spans[id(request)].add_event("first_token")

    def finished(self, request: Observed) -> None:
        """See Observer."""
        span = self._spans.pop(id(request))
        span.set_attribute("http.response.status_code", request.status)
        if request.answers:
            span.set_attribute("gen_ai.usage.input_tokens", request.prompt_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", request.generated_tokens)
        if request.error:
            span.set_attribute("error.type", request.error)
        if request.status >= 500 or (request.error and request.status < 400):
            span.set_status(StatusCode.ERROR)
        span.end()
