"""A job's pipeline, built in the job's own temporary folder.

The folder that Beam makes for a pipeline has no owner, so nobody may remove it when the job was killed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam

from ..flags.options import JobOptions

Build = Callable[[beam.Pipeline, JobOptions], Any]
"""Applies a job's steps."""


def built(runner: Any, options: JobOptions, build: Build) -> beam.Pipeline:
    """The pipeline with its steps."""
    pipeline = beam.Pipeline(runner=runner, options=options.beam)
    try:
        build(pipeline, options)
    except BaseException:
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)  # running it would have removed it
        raise
    return pipeline


def building_in(folder: Path, build: Build) -> Build:
    """`build`, for pipelines whose temporary files are in the folder."""

    def build_there(pipeline: beam.Pipeline, options: JobOptions) -> Any:
        Path(pipeline.local_tempdir).rmdir()
        pipeline.local_tempdir = tempfile.mkdtemp(dir=folder)
        return build(pipeline, options)

    return build_there
