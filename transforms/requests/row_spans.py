"""A span for each row, from its submission to its result; the spans of its requests are below it. Off by default.

Knows rows and their ids; what is in them is in no span.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

from millrace.model_manager.wire.traces import Traces

OpenRow = Any
"""A row's span; None where traces are off."""


class RowSpans(Protocol):
    """Makes the spans."""

    def begin(self, row_id: str, request_id: str) -> OpenRow:
        """The span of a row that is about to be submitted."""

    def within(self, row: OpenRow) -> contextlib.AbstractContextManager[None]:
        """Within, it is the parent of what is sent, and the row that `failed` speaks of. What is raised ends it."""

    def failed(self, kind: str) -> None:
        """The row becomes a dead letter for an error of that class."""

    def retried(self, row: OpenRow) -> None:
        """A retried bundle takes over the row's request."""

    def end(self, row: OpenRow) -> None:
        """Its result, or its dead letter, is there."""


class NoSpans:
    """Traces are off."""

    def begin(self, row_id: str, request_id: str) -> OpenRow:  # noqa: ARG002
        """See RowSpans."""
        return None

    def within(self, row: OpenRow) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """See RowSpans."""
        return contextlib.nullcontext()

    def failed(self, kind: str) -> None:
        """See RowSpans."""

    def retried(self, row: OpenRow) -> None:
        """See RowSpans."""

    def end(self, row: OpenRow) -> None:
        """See RowSpans."""


class SomeSpans:
    """Traces are on."""

    def __init__(self, traces: Traces, task: str) -> None:
        from opentelemetry import trace

        from millrace.model_manager.client.trace_export import tracer

        self._trace = trace
        self._tracer = tracer(traces)
        self._task = task

    def begin(self, row_id: str, request_id: str) -> OpenRow:
        """See RowSpans. A row is the beginning of its trace, whatever span the process is in."""
        about = {"millrace.task": self._task, "millrace.row.id": row_id, "millrace.request.id": request_id}
        nothing = self._trace.set_span_in_context(self._trace.INVALID_SPAN)
        return self._tracer.start_span(f"row {self._task}", context=nothing, attributes=about)

    @contextlib.contextmanager
    def within(self, row: OpenRow) -> Iterator[None]:
        """See RowSpans."""
        with self._trace.use_span(row, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except BaseException as error:
                self.failed(type(error).__name__)
                row.end()
                raise

    def failed(self, kind: str) -> None:
        """See RowSpans."""
        row = self._trace.get_current_span()
        row.set_attribute("error.type", kind)
        row.set_status(self._trace.StatusCode.ERROR)

    def retried(self, row: OpenRow) -> None:
        """See RowSpans."""
        row.add_event("bundle_retried")

    def end(self, row: OpenRow) -> None:
        """See RowSpans."""
        row.end()


def row_spans(traces: Traces | None, task: str) -> RowSpans:
    """Spans of a task's rows; none where `traces` is None."""
    return NoSpans() if traces is None else SomeSpans(traces, task)
