"""Runs a job: checks before it starts, progress while it runs, a summary at its end.

Without --runner a job of files runs here on Beam's local runner, and a stream, until it is stopped, on Prism.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import apache_beam as beam
import psutil  # type: ignore[import-untyped, unused-ignore]
from apache_beam.options.pipeline_options import PortableOptions
from apache_beam.runners.portability.portable_runner import PipelineResult as PortableResult
from apache_beam.runners.runner import PipelineState
from rich.console import Console

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.store import resolve
from millrace.model_manager.store.environments import check_engines
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.manager_place import manager_place
from millrace.model_manager.wire.runtime import RuntimeDir
from millrace.transforms.files.temporary_folders import temporary_files
from millrace.transforms.runners import runs_here
from millrace.transforms.writing.output_files import OutputFiles

from ..dataflow.submission import Build, run_on_dataflow
from ..flags.job_options import JobOptions
from ..interrupts import STOPPED, TERMINATED, interruptible
from ..places.checks import check, check_checkpoints
from ..places.claims import claimed
from ..places.lost_stores import is_store_lost, store_looked_at, what_is_kept_there
from ..places.provenance import forget_identity, with_identity
from ..places.restored import restored_if_nothing_written
from ..places.sources_and_sinks import clear_temporary, files_of
from ..runners.job_server import hint_at_workers, losses_told, runs_on_flink
from ..runners.local_runner import FnApiRunner
from ..runners.named_runner import named_runner
from .launches import noted_launches
from .logs import logs_at, tell
from .on_prism import run_on_prism
from .outliving import outliving_workers
from .remote_job import followed, job_id
from .report.job_report import JobReport, check_report, reported
from .report.recording import Recorder
from .summary import Outcome, model_lines, outcome_of, print_summary
from .watching import looked_at, status_reader, watched


def run_job(options: JobOptions, build: Build) -> int:
    """Build and run the job; returns the exit status, raises what `at_the_edge` tells."""
    with logs_at(options.log_level) as console:
        if options.runner.is_on_google_cloud:
            return run_on_dataflow(options, build, functools.partial(tell, console))
        check(options)
        check_report(options)
        if runs_here(options.beam, options.runner):
            check_engines(manager_place(options.manager), (options.model, *options.models))  # before models are fetched
        if runs_on_flink(options.beam):
            check_checkpoints(options)
        with claimed(options), restored_if_nothing_written(options), temporary_files("job"):
            for line in () if options.quiet else model_lines(options.model):
                tell(console, line)
            status = _run(with_identity(files_of(options), options), build, console)
            forget_identity(files_of(options))
            return status


def _run(options: JobOptions, build: Build, console: Console) -> int:
    if options.is_stream:
        return _run_stream(options, build, console)
    if not options.runner.is_local:
        return _run_elsewhere(options, build, console)
    _fetch(options)
    if options.if_exists == "overwrite":
        _check_model(options)
    before = time.time() - psutil.Process().create_time()
    return _run_here(_built(FnApiRunner(), options, build), options, build, console, before)


def _fetch(options: JobOptions) -> None:
    """Fetch the models' files, unless servers or a manager elsewhere have them."""
    for model in (options.model, *options.models):
        if BACKENDS[model.backend].fetches_files and isinstance(manager_place(options.manager), RuntimeDir):
            resolve(model.model, model.revision, backend=model.backend)


def _check_model(options: JobOptions) -> None:
    """Load the model before earlier output is replaced, so that the output is not lost if the model cannot be loaded.

    The model stays loaded for the job, as between any two jobs.
    """
    files = files_of(options)
    if files is not None and (files.existing("completions") or files.interrupted("completions")):
        _opened(options).close()


def _run_here(pipeline: beam.Pipeline, options: JobOptions, build: Build, console: Console, before: float) -> int:
    """`before`: seconds from the command's start to the graph's building; startup is what a person waits for."""
    read = status_reader(options)
    noted = noted_launches(options, read)
    with reported(options, read, before) as report, noted as launches, contextlib.ExitStack() as held:
        outcome = outliving_workers(
            pipeline,
            options,
            lambda pipeline, options: _outcome(pipeline, options, console, report.recorder),
            lambda options: _built_again(options, build, held),
        )
        startup = outcome.startup and outcome.startup + before
        outcome = report.finished(replace(outcome, startup=startup, launches=launches))
    print_summary(outcome, quiet=options.quiet, stderr=console.file)
    return outcome.status


def _built_again(options: JobOptions, build: Build, held: contextlib.ExitStack) -> beam.Pipeline:
    """The pipeline of a job whose workers are gone. Until `held` ends, the model stays loaded, and answers are kept."""
    earlier = held.pop_all()
    held.enter_context(_opened(options))
    earlier.close()
    return _built(FnApiRunner(), options, build)


def _opened(options: JobOptions) -> EngineClient:
    return EngineClient.open(options.model, manager=options.manager, job=options.job, chat=options.chat)


def _outcome(pipeline: beam.Pipeline, options: JobOptions, console: Console, recorder: Recorder | None) -> Outcome:
    files = files_of(options)
    kept = files.current("completions") if files is not None and options.if_exists == "resume" else []
    ends = interruptible(lambda: _what_is_kept(files), also=TERMINATED)
    with ends, _told_what_is_kept(files), store_looked_at(files), watched(options, console, recorder):
        result = pipeline.run()
        result.wait_until_finish()
    return outcome_of(result, kept, output=options.output, letters=options.letters)


def _run_elsewhere(options: JobOptions, build: Build, console: Console) -> int:
    """Run the job on another runner; print its id, its states, how it ended, and the counts of its job server."""
    with interruptible(lambda: "nothing was submitted", also=STOPPED), named_runner(options.beam) as runner:
        return _await_elsewhere(_built(runner, options, build), options, console)


def _await_elsewhere(pipeline: beam.Pipeline, options: JobOptions, console: Console) -> int:
    files = files_of(options)
    kept = files.current("completions") if files is not None and options.if_exists == "resume" else []
    result = None
    to_cancel = _how_to_cancel(options)
    ends = interruptible(lambda: _what_goes_on(options, files, result, to_cancel), also=STOPPED)
    report = JobReport(options, status_reader(options))
    notes = hint_at_workers(options.beam)
    with ends, notes, _told_what_is_kept(files), store_looked_at(files), looked_at(report.recorder):
        result = pipeline.run()
        lost = losses_told(options.beam, _name_of(result), to_cancel)
        with lost, _followed(result, options, console, to_cancel):
            state = result.wait_until_finish()
    print(f"the job's state: {state}")
    if options.is_stream:
        clear_temporary(options, may_go_on=True)
    if state == PipelineState.DONE and isinstance(result, PortableResult):
        outcome = outcome_of(result, kept, output=options.output, letters=options.letters)
        outcome = report.finished(outcome)
        if not options.quiet:
            print("as its runner counted:")
        print_summary(outcome, quiet=options.quiet, stderr=console.file)
        return outcome.status
    return 1 if state in (PipelineState.FAILED, PipelineState.CANCELLED) else 0


def _followed(
    result: Any, options: JobOptions, console: Console, to_cancel: str
) -> contextlib.AbstractContextManager[None]:
    """The id first. A job on Prism ends with this process, so its id is not shown."""
    if options.quiet or options.runner.is_on_this_machine or not isinstance(result, PortableResult):
        return contextlib.nullcontext()
    endpoint = options.beam.view_as(PortableOptions).job_endpoint
    where = f"the job server at {endpoint}" if endpoint else options.runner.name
    tell(console, f"job {job_id(result)}: submitted to {where}; {to_cancel}")
    return followed(result, functools.partial(tell, console))


def _how_to_cancel(options: JobOptions) -> str:
    if runs_on_flink(options.beam):
        return (
            "watch and cancel it on Flink's page, or with `curl -X PATCH http://HOST:8081/jobs/ID`"
            " (docs/tutorials/flink.md in millrace's repository)"
        )
    return "cancel it at its runner"


def _what_goes_on(options: JobOptions, files: OutputFiles | None, result: Any, to_cancel: str) -> str:
    """`result`: None until the runner has said that it has the job."""
    if options.runner.is_on_this_machine:  # its job ends with this process
        return _what_is_kept(files)
    if result is None:
        return "the job was being submitted: if its runner has it, cancel it there"
    return f"detached: {_name_of(result)} may still run; {to_cancel}"


def _name_of(result: Any) -> str:
    return f"job {job_id(result)}" if isinstance(result, PortableResult) else "the job"


def _what_is_kept(files: OutputFiles | None) -> str:
    if files is None:
        return "what was answered is sent"
    if is_store_lost(error := sys.exception()):
        return what_is_kept_there(error, files)
    try:
        if files.interrupted("completions"):
            return f"--resume goes on from what is in {files.temporary}"
        written = files.current("completions")
    except (Exception, KeyboardInterrupt):  # an interruption stays one, whatever the store says
        return what_is_kept_there(error, files)
    return f"what is written is in {written[0]}" if written else "nothing was written"


def _is_interrupted(files: OutputFiles) -> bool:
    """Whether rows are written and not finished; False where the store does not say so."""
    with contextlib.suppress(Exception):
        return bool(files.interrupted("completions"))
    return False


@contextlib.contextmanager
def _told_what_is_kept(files: OutputFiles | None) -> Iterator[None]:
    """An error that ends the job, such as a full disk, says how to go on if something was written."""
    try:
        yield
    except Exception as error:
        if files is not None and not is_store_lost(error) and _is_interrupted(files):
            error.add_note(_what_is_kept(files))
        raise


def _run_stream(options: JobOptions, build: Build, console: Console) -> int:
    if not options.runner.is_on_this_machine:
        return _run_elsewhere(options, build, console)
    _fetch(options)
    return run_on_prism(options, lambda runner: _built(runner, options, build), console)


def _built(runner: Any, options: JobOptions, build: Build) -> beam.Pipeline:
    """The pipeline with its steps."""
    pipeline = beam.Pipeline(runner=runner, options=options.beam)
    build(pipeline, options)
    return pipeline
