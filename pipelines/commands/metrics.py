"""`millrace metrics`: this machine's models, jobs and processes for Prometheus. Imports neither Beam nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from millrace.model_manager.client.status import read_status
from millrace.model_manager.wire.extras import check_serve_extra
from millrace.serving.settings import MetricsConfig

from ..edge import at_the_edge
from ..flags.from_settings import add_settings, given
from ..flags.parser import FlagParser
from ..flags.shared_flags import add_place, place_of
from ..interrupts import end_signal
from ..job.logs import logs_at


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes; returns the exit status."""
    return at_the_edge(lambda: _serve(arguments))


def _serve(arguments: Sequence[str]) -> int:
    parser = FlagParser(
        prog="millrace metrics",
        description="Serve metrics of this machine's models, jobs and processes to Prometheus.",
        allow_abbrev=False,
    )
    names = add_settings(parser, MetricsConfig)
    add_place(parser)
    flags = parser.parse_args(list(arguments))
    settings = MetricsConfig(**given(flags, names))
    read = partial(read_status, place_of(flags))
    check_serve_extra("metrics", "prometheus_client")
    from millrace.serving.metrics.listening import serving_metrics

    ended = end_signal()
    with logs_at("warning"), serving_metrics(settings, read) as url:
        print(f"metrics of this machine at {url}", flush=True)
        ended.wait()
    return 0
