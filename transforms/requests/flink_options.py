"""What Beam's runner for Flink is told of checkpoints, by options of its job server that Beam's Python does not know.

Whoever imports this has every job say `finish_bundle_before_checkpointing`, in programs as on the command line; other
runners take no notice. Without it that runner ends an open bundle while it takes a checkpoint, keeps what comes out of
that back, and lets the watermark go on before it: rows come late where they are grouped, and are dropped, or lie there
until the next element comes. Seen with Beam 2.62 (docs/FLINK.md); in the source of 2.70 it is the same.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

_log = logging.getLogger(__name__)


class FlinkOptions(PipelineOptions):
    """Those that are of use here; None is the job server's own default."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        parser.add_argument(
            "--finish_bundle_before_checkpointing",
            nargs="?",
            const=True,
            default=True,
            type=_boolean,
            help="On Flink: whether bundles end before a checkpoint begins; without it rows are lost.",
        )
        for name in ("checkpointing_interval", "checkpoint_timeout_millis", "shutdown_sources_after_idle_ms"):
            parser.add_argument(f"--{name}", type=int, help="On Flink: milliseconds.")
        parser.add_argument("--checkpointing_mode", help="On Flink: EXACTLY_ONCE (its default) or AT_LEAST_ONCE.")
        parser.add_argument("--max_bundle_size", type=int, help="On Flink: elements of a bundle.")
        parser.add_argument("--max_bundle_time_mills", type=int, help="On Flink: milliseconds of a bundle.")


def has_checkpoints(options: PipelineOptions) -> bool:
    """Whether Flink is told to make checkpoints. What the cluster's own configuration says is not known here."""
    interval = options.view_as(FlinkOptions).checkpointing_interval
    return interval is not None and interval > 0  # -1 is Flink's word for none


def warn_of_lost_rows(options: PipelineOptions) -> None:
    """Say so where someone turned off what keeps rows from being lost."""
    if has_checkpoints(options) and not options.view_as(FlinkOptions).finish_bundle_before_checkpointing:
        _log.warning("--finish_bundle_before_checkpointing=false: Beam's runner for Flink loses rows at checkpoints")


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"takes true or false, not {value}")
    return value.lower() == "true"
