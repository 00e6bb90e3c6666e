"""Serves this machine's metrics beside any job, with the library's own HTTP server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server

from ..http.addresses import refused, url
from ..settings import MetricsConfig
from .machine import MachineMetrics


@contextlib.contextmanager
def serving_metrics(settings: MetricsConfig) -> Iterator[str]:
    """A server on threads of its own; yields its URL. Raises ConfigError for an address that cannot be had."""
    registry = CollectorRegistry()
    registry.register(MachineMetrics())
    try:
        server, thread = start_http_server(settings.port, settings.host, registry)
    except OSError as error:
        raise refused(settings.host, settings.port, error) from None
    try:
        yield f"{url(server.socket)}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
