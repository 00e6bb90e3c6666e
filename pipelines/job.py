"""Running a job: what can be known to be wrong is found before it starts; progress while it runs; then a summary."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TextIO

import apache_beam as beam
from apache_beam.runners.runner import PipelineState
from rich.console import Console

from model_manager.client.engine_client import EngineClient
from model_manager.client.status import read_status
from model_manager.store import resolve
from model_manager.wire.errors import MillraceError
from model_manager.wire.messages import Status
from pipelines.edge import interruptible
from pipelines.local_runner import local_runner, runs_here
from pipelines.logs import logs_at
from pipelines.options import JobOptions
from pipelines.progress import Speed, shown_progress
from pipelines.summary import outcome_of, print_summary
from transforms.count import RowCount, count_rows
from transforms.output_files import OutputFiles, output_and_format
from transforms.resume import count_completed


def run_job(options: JobOptions, build: Callable[[beam.Pipeline], Any]) -> int:
    """Build and run the job; returns the exit status, raises what `at_the_edge` tells."""
    with logs_at(options.log_level) as stderr:
        here = runs_here(options.beam)
        if here:
            resolve(options.model.model, options.model.revision)
            if options.if_exists == "overwrite":
                _check_model(options)
        pipeline = beam.Pipeline(runner=local_runner(options.beam) if here else None, options=options.beam)
        try:
            build(pipeline)
        except BaseException:
            shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)  # running it would have removed it
            raise
        return _run_here(pipeline, options, stderr) if here else _run_elsewhere(pipeline)


def _check_model(options: JobOptions) -> None:
    """Load the model first where earlier output is to be replaced: one that cannot be loaded must not cost that.

    It stays loaded for the job, as between any two jobs.
    """
    files = OutputFiles(output_and_format(options.output, options.output_format)[0])
    if files.existing("completions") or files.interrupted("completions"):
        EngineClient.open(options.model, manager=options.manager, job=options.job, chat=options.chat).close()


def _run_here(pipeline: beam.Pipeline, options: JobOptions, stderr: TextIO) -> int:
    files = OutputFiles(output_and_format(options.output, options.output_format)[0])
    kept = files.current("completions") if options.if_exists == "resume" else []
    speed = Speed(None if options.quiet else _total(options))
    with interruptible(lambda: _what_is_kept(files)), _progress(options, speed, stderr):
        result = pipeline.run()
        result.wait_until_finish()
    outcome = outcome_of(result, files, kept)
    if not options.quiet:
        print_summary(outcome)
    return outcome.status


def _run_elsewhere(pipeline: beam.Pipeline) -> int:
    """A remote runner shows the job in its own way; here, only how it ended."""
    state = pipeline.run().wait_until_finish()
    print(f"the job's state: {state}")
    return 1 if state in (PipelineState.FAILED, PipelineState.CANCELLED) else 0


def _what_is_kept(files: OutputFiles) -> str:
    if not files.interrupted("completions"):
        return "nothing was written"
    return f"--resume goes on from what is in {files.temporary}"


def _progress(options: JobOptions, speed: Speed, stderr: TextIO) -> Any:
    if options.quiet:
        return nullcontext()
    return shown_progress(_read_status, options.job, speed, Console(file=stderr))


def _total(options: JobOptions) -> RowCount:
    total = count_rows(options.input, options.input_format)
    if options.if_exists != "resume":
        return total
    completed = count_completed(output_and_format(options.output, options.output_format)[0])
    return RowCount(max(total.rows - completed, 0), total.exact)


def _read_status() -> Status | None:
    """None also while a manager, just starting or busy, does not answer: progress is for the eye."""
    try:
        return read_status()
    except MillraceError:
        return None
