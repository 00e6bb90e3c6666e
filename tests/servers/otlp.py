"""A collector of OpenTelemetry's: takes spans over OTLP and HTTP, as protobuf, and remembers them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from .http_threads import running


@dataclass(frozen=True)
class Received:
    """A span as it came."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    is_error: bool
    attributes: dict[str, Any]
    events: list[tuple[str, int]]
    """Names with their times in nanoseconds, in the order in which they came."""

    @property
    def event_names(self) -> list[str]:
        return [name for name, _ in self.events]


@dataclass
class Collector:
    """What has come so far."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    whole_replies: int = 0
    """Replies whose last byte the system took."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def named(self, beginning: str) -> list[Received]:
        """The spans whose names begin so."""
        with self.lock:
            return [span for span in self.spans if span.name.startswith(beginning)]

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self.lock:
            self.bodies.append(body)
            for of_resource in request.resource_spans:
                self.resources.append(_attributes(of_resource.resource.attributes))
                self.spans += (_received(span) for scope in of_resource.scope_spans for span in scope.spans)


@contextlib.contextmanager
def hanging_collector() -> Iterator[str]:
    """The address of one that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def collector(reply: bytes = b"") -> Iterator[Collector]:
    """A collector on a port of its own, until the block ends."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            found.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            with contextlib.suppress(OSError):  # a client may hang up in the middle of it
                self.wfile.write(reply)
                found.whole_replies += 1

        def log_message(self, *_: object) -> None:
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield found


def _received(span: Any) -> Received:
    return Received(
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        is_error=span.status.code == 2,
        attributes=_attributes(span.attributes),
        events=[(event.name, event.time_unix_nano) for event in span.events],
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, str(kind))
