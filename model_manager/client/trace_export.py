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

import requests
import urllib3
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer

from ..wire.extras import check_traces_extra
from ..wire.traces import Traces

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
_MOST_OF_REPLY = 4096
"""Most bytes of a collector's reply that are read. Only the reply's status is used."""
_CREDENTIAL_PROVIDERS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
)
"""Variables that name another session, such as one that signs in: the library's own, whose replies are read whole."""
_EXPORTERS_LOGS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")
"""Where the library says that it cannot send, or drops."""


def tracer(traces: Traces) -> Tracer:
    """What makes spans for that collector; the same for equal settings."""
    return _exporting(traces).provider.get_tracer(_NAME)


def flush(traces: Traces) -> None:
    """Send what waits, within a short time."""
    _exporting(traces).flush()


_one_at_a_time = threading.RLock()
"""Re-entrant: the garbage collector may end a client, which flushes, in a thread that makes an exporter."""


def _exporting(traces: Traces) -> _Exporting:
    """The same for all threads: a cache alone holds no lock while it computes."""
    with _one_at_a_time:
        return _made(traces)


@functools.cache
def _made(traces: Traces) -> _Exporting:
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
        exporter = OTLPSpanExporter(traces.url, timeout=_TIMEOUT, session=_session())
        self._reporting = Reporting(exporter, traces.url)
        self.provider.add_span_processor(
            BatchSpanProcessor(self._reporting, max_queue_size=_MOST_WAITING, schedule_delay_millis=_EVERY)
        )
        self._late = threading.Event()
        """Set while no flush runs on after the wait for it."""
        self._late.set()
        self._asked: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._flush, name="millrace-traces", daemon=True).start()
        atexit.register(self.flush)

    def flush(self) -> None:
        """Send the buffered spans. A thread does it, since the library's call keeps no timeout. The thread runs
        already, because none can start at exit.

        While a flush is late, the next ones do not wait: the process ends after one wait.
        """
        if not self._late.is_set():
            return
        done = threading.Event()
        self._asked.put(done)
        if not done.wait(_LAST_WITHIN):
            self._late = done
            self._reporting.late()

    def _flush(self) -> None:
        while True:
            done = self._asked.get()
            try:
                self.provider.force_flush()
            except Exception:
                log.exception("traces: spans were not sent")
            finally:
                done.set()


def _session() -> requests.Session | None:
    """One that reads a part of each reply; None for the library's own."""
    if any(map(os.environ.get, _CREDENTIAL_PROVIDERS)):
        return None
    session = requests.Session()
    session.stream = True
    session.hooks["response"] = [_read_a_part]
    return session


def _read_a_part(reply: requests.Response, **_: object) -> None:
    """A short reply is read whole, so its connection serves the next batch."""
    with contextlib.suppress(OSError, urllib3.exceptions.HTTPError):  # the status is there, and counts
        reply.raw.read(_MOST_OF_REPLY)
    reply.close()


class Reporting(SpanExporter):
    """Exports, and warns once of what is not taken; what the library says of it goes no further."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self._exporter = exporter
        self._url = url
        self._quiet = _Quiet()
        for name in _EXPORTERS_LOGS:
            logging.getLogger(name).addFilter(self._quiet)
        logging.getLogger(_EXPORTERS_LOGS[0]).setLevel(logging.WARNING)  # also where a job shows nothing of libraries

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        with self._quiet.during():
            result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._warn("takes no spans")
        return result

    def late(self) -> None:
        """The last spans were waited for in vain."""
        self._warn(f"has not taken the last spans within {_LAST_WITHIN:g} s")

    def _warn(self, what: str) -> None:
        if self._quiet.first_warning():
            said = f": {self._quiet.said}" if self._quiet.said else ""
            log.warning("traces: %s %s%s; they are dropped, and the job goes on", self._url, what, said)

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
        self._warned = threading.Lock()
        self._thread: int | None = None

    def first_warning(self) -> bool:
        """True for the first caller alone."""
        return self._warned.acquire(blocking=False)

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Marks this thread as the exporting one for the block."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        if record.thread == self._thread:
            self.said = " ".join((_cause(record) or record.getMessage()).split())[:200].rstrip(".")
            return False
        return not (self._warned.locked() and record.getMessage().startswith("Queue full"))


def _cause(record: logging.LogRecord) -> str:
    """The first error of those that a record speaks of, such as `[Errno 111] Connection refused`; empty without one."""
    found = next((each for each in record.args or () if isinstance(each, Exception)), None)
    if found is None:
        return ""
    error: BaseException = found
    while inner := error.__cause__ or error.__context__:
        error = inner
    return str(error)
