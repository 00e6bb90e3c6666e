"""Sends spans to a collector, from one thread of this process. A collector that is down holds nothing up: spans wait
in a queue of limited length, what is too much is dropped, and one warning says so.

Knows no request. Imported only where traces are on.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import queue
import threading
from collections.abc import Iterator, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer

from ..wire.traces import Traces, check_traces_extra

log = logging.getLogger(__name__)

_NAME = "millrace"
_MOST_WAITING = 8192
"""Spans that wait to be sent; a span takes about 2 KB."""
_EVERY = 1000.0
"""Milliseconds between two batches."""
_TIMEOUT = 5.0
"""Seconds for a batch, its retries included."""
_LAST_WITHIN = 2.0
"""Seconds that a client's or a process's end waits for the spans that are left."""
_EXPORTERS_LOGS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")
"""Where the library says that it cannot send, or drops."""


def tracer(traces: Traces) -> Tracer:
    """What makes spans for that collector; the same for equal settings."""
    return _exporting(traces).provider.get_tracer(_NAME)


def flush(traces: Traces) -> None:
    """Send what waits, within a short time."""
    _exporting(traces).flush()


@functools.cache
def _exporting(traces: Traces) -> _Exporting:
    return _Exporting(traces)


class _Exporting:
    """The spans of this process for one collector, until the process ends."""

    def __init__(self, traces: Traces) -> None:
        check_traces_extra()
        self.provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(traces.ratio)),
            resource=Resource.create(
                {"service.name": os.environ.get("OTEL_SERVICE_NAME", _NAME), "process.pid": os.getpid()}
            ),
            shutdown_on_exit=False,  # that would wait half a minute for a collector that is down
        )
        exporter = Reporting(OTLPSpanExporter(traces.url, timeout=_TIMEOUT), traces.url)
        self.provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=_MOST_WAITING, schedule_delay_millis=_EVERY)
        )
        self._asked: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._flush, name="millrace-traces", daemon=True).start()
        atexit.register(self.flush)

    def flush(self) -> None:
        """In a thread, since the library's call keeps no timeout; one that runs already, as none starts at exit."""
        done = threading.Event()
        self._asked.put(done)
        done.wait(_LAST_WITHIN)

    def _flush(self) -> None:
        while True:
            done = self._asked.get()
            try:
                self.provider.force_flush()
            except Exception:
                log.exception("traces: spans were not sent")
            finally:
                done.set()


class Reporting(SpanExporter):
    """Exports, and warns once of what is not taken; what the library says of it goes no further."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self._exporter = exporter
        self._url = url
        self._quiet = _Quiet()
        for name in _EXPORTERS_LOGS:
            logging.getLogger(name).addFilter(self._quiet)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        with self._quiet.during():
            result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS and not self._quiet.warned:
            self._quiet.warned = True
            said = f": {self._quiet.said}" if self._quiet.said else ""
            log.warning("traces: %s takes no spans%s; they are dropped, and the job goes on", self._url, said)
        return result

    def shutdown(self) -> None:
        """See SpanExporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """See SpanExporter."""
        return self._exporter.force_flush(timeout_millis)


class _Quiet(logging.Filter):
    """Keeps the last record of the thread that exports, and lets none of them through; nor any of a full queue, once
    the warning is out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.said = ""
        self.warned = False
        self._thread: int | None = None

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Within, this thread exports."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        if record.thread == self._thread:
            self.said = " ".join(record.getMessage().split())[:200].rstrip(".")
            return False
        return not (self.warned and record.getMessage().startswith("Queue full"))
