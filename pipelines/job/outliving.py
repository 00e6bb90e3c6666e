"""A job on Beam's local runner that goes on when a worker process was killed: it is run again, as `--resume` would.

The rows that are written are kept, and not asked again. That takes files as output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import apache_beam as beam

from millrace.model_manager.wire.errors import WorkerLost

from ..flags.job_options import JobOptions
from ..places.sources_and_sinks import files_of
from .summary import Outcome

CONTINUATIONS = 3
"""Deaths in a row, without a row written between them, that a job outlives. The next one ends it: the job itself may be
what kills its workers, for example by the memory that it takes.
"""
_log = logging.getLogger(__name__)


def outliving_workers(
    pipeline: beam.Pipeline,
    options: JobOptions,
    run: Callable[[beam.Pipeline, JobOptions], Outcome],
    built: Callable[[JobOptions], beam.Pipeline],
) -> Outcome:
    """Run the pipeline, and after the death of a worker one that is `built` with `--resume`.

    Raises WorkerLost where that does not help: the output is no files, the worker failed, or too many were killed.
    """
    files, in_row = files_of(options), 0
    while True:
        try:
            return run(pipeline, options)
        except WorkerLost as lost:
            if not lost.was_killed or files is None:
                raise
            in_row = 1 if files.interrupted("completions") else in_row + 1
            if in_row > CONTINUATIONS:
                raise
            _log.warning("%s: continuing from the rows that are written (%d of %d)", lost.how, in_row, CONTINUATIONS)
        options = replace(options, if_exists="resume")
        pipeline = built(options)
