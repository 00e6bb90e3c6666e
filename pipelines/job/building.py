"""A job's pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam

from ..flags.options import JobOptions

Build = Callable[[beam.Pipeline, JobOptions], Any]
"""Applies a job's steps."""


def built(runner: Any, options: JobOptions, build: Build) -> beam.Pipeline:
    """The pipeline with its steps."""
    pipeline = beam.Pipeline(runner=runner, options=options.beam)
    build(pipeline, options)
    return pipeline
