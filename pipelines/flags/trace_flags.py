"""`--otlp_endpoint`, `--traces` and `--trace_ratio`: whether spans are sent, and where to."""

from __future__ import annotations

import argparse
import os
from typing import Any

from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.extras import check_traces_extra
from millrace.model_manager.wire.traces import ROUTE, Traces

_OF_TRACES, _OF_ALL = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Variables of the environment: a whole URL, and what `/v1/traces` comes after."""


def add_traces(group: Any) -> None:
    """Adds the flags, which `read_traces` reads."""
    group.add_argument(
        "--otlp_endpoint",
        metavar="URL",
        help="Send a trace of each row or request to the OpenTelemetry collector at URL, such as "
        "http://localhost:4318, by OTLP over HTTP. Needs the extra beam-millrace[traces].",
    )
    group.add_argument(
        "--traces",
        action="store_true",
        help="Send traces to the collector that the variable OTEL_EXPORTER_OTLP_ENDPOINT names.",
    )
    group.add_argument(
        "--trace_ratio",
        type=float,
        metavar="N",
        help="Share of rows or requests that are traced, 0 to 1. Default: 1.0.",
    )


def read_traces(known: argparse.Namespace) -> Traces | None:
    """Where spans go; None where they are off. Raises ConfigError, one sentence that names the flag."""
    endpoint = known.otlp_endpoint or (_named() if known.traces else None)
    if endpoint is None:
        if known.traces:
            raise ConfigError(f"--traces: needs --otlp_endpoint URL, or the variable {_OF_ALL}")
        if known.trace_ratio is not None:
            raise ConfigError("--trace_ratio: needs --otlp_endpoint URL, or --traces")
        return None
    ratio = {} if known.trace_ratio is None else {"ratio": known.trace_ratio}
    traces = Traces(endpoint=endpoint, **ratio)
    check_traces_extra()
    return traces


def _named() -> str | None:
    """The URL that the environment names."""
    if whole := os.environ.get(_OF_TRACES):
        return whole
    base = os.environ.get(_OF_ALL)
    return f"{base.rstrip('/')}{ROUTE}" if base else None
