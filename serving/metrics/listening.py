"""Serves this machine's metrics beside any job, with the library's own HTTP server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from millrace.model_manager.client.status import ReadStatus, read_status

from ..http.listen_addresses import is_loopback, is_own_name, refused, url
from ..settings import MetricsConfig
from .machine_metrics import MachineMetrics


@contextlib.contextmanager
def serving_metrics(settings: MetricsConfig, read: ReadStatus = read_status) -> Iterator[str]:
    """A server on threads of its own; yields its URL. Raises ConfigError for an address that cannot be had."""
    registry = CollectorRegistry()
    registry.register(MachineMetrics(read))
    try:
        server, thread = start_http_server(settings.port, settings.host, registry)
    except OSError as error:
        raise refused(settings.host, settings.port, error) from None
    if is_loopback(server.socket.getsockname()[0]):
        server.set_app(_for_own_names(server.get_app()))
    try:
        yield f"{url(server.socket)}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _for_own_names(app: Any) -> Callable[..., Iterable[bytes]]:
    """The WSGI application; other sites' names may lead here, and their pages would read the answers."""

    def checked(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if is_own_name(environ.get("HTTP_HOST", "")):
            answer: Iterable[bytes] = app(environ, start)
            return answer
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"the name in the header Host is none of this machine's\n"]

    return checked
