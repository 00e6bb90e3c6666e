"""`millrace metrics`: this machine's models, jobs and processes for Prometheus. Imports neither Beam nor torch."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.serving.extra import check_extra
from millrace.serving.settings import MetricsConfig

from ..edge import at_the_edge, end_signal
from ..flags.from_settings import add_settings, given
from ..flags.parser import FlagParser
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
    settings = MetricsConfig(**given(parser.parse_args(list(arguments)), names))
    check_extra("metrics", "prometheus_client")
    from millrace.serving.metrics.listening import serving_metrics

    ended = end_signal()
    with logs_at("warning"), serving_metrics(settings) as url:
        print(f"metrics of this machine at {url}", flush=True)
        ended.wait()
    return 0
