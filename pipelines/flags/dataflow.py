"""Our flags for Dataflow alone. Beam's own flags say everything else about workers."""

from __future__ import annotations

import argparse
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.runners import runner_of

from .machines import GPUS


def add_dataflow(group: Any) -> None:
    """`--gpu` and `--dry_run`."""
    add_gpu(group)
    group.add_argument(
        "--dry_run", action="store_true", help="Print what would be submitted, and exit. Uses no network."
    )


def add_gpu(group: Any) -> None:
    """`--gpu` alone."""
    group.add_argument(
        "--gpu",
        default="none",
        metavar="TYPE[:COUNT]",
        help=f"GPUs of each worker that runs the model: none, {', '.join(GPUS)}, or several as l4:2. Default: none.",
    )


def check_dataflow(known: argparse.Namespace, options: PipelineOptions) -> None:
    """Raises ConfigError where they are given to another runner."""
    if runner_of(options).is_on_google_cloud:
        return
    if known.gpu != "none":
        raise ConfigError("--gpu needs --runner DataflowRunner; elsewhere --device cuda uses the GPUs that are there")
    if known.dry_run:
        raise ConfigError("--dry_run needs --runner DataflowRunner")
