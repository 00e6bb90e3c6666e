"""Runs a job: checks before it starts, progress while it runs, a summary at its end.

Without --runner a job of files runs here on Beam's local runner, and a stream, until it is stopped, on Prism.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
import psutil  # type: ignore[import-untyped, unused-ignore]
from apache_beam.options.pipeline_options import PortableOptions
from apache_beam.runners.portability.portable_runner import PipelineResult as PortableResult
from apache_beam.runners.runner import PipelineState
from rich.console import Console

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.status import read_status
from millrace.model_manager.store import resolve
from millrace.model_manager.store.environments import check_engines
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.manager_place import manager_place
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.runtime import RuntimeDir
from millrace.transforms.addresses import Files, PubSubAddress
from millrace.transforms.elements.metrics import failures_in, tallied
from millrace.transforms.reading.count import BUDGET, RowCount, count_rows
from millrace.transforms.runners import runs_here
from millrace.transforms.streams.readers import when_reading
from millrace.transforms.writing.output_files import OutputFiles
from millrace.transforms.writing.resume import count_completed

from ..dataflow.submission import run_on_dataflow
from ..edge import STOPPED, TERMINATED, interruptible
from ..flags.options import JobOptions
from ..places.claims import claimed
from ..places.endpoints import (
    check,
    check_checkpoints,
    clear_temporary,
    drain_file,
    drains,
    files_of,
    input_format_of,
)
from ..places.provenance import forget_identity, with_identity
from ..places.restored import restored_if_nothing_written
from ..runners.job_server import hint_at_workers, runs_on_flink
from ..runners.local_runner import FnApiRunner
from ..runners.named_runner import named_runner
from ..runners.prism import OwnPrism
from ..temporary_folders import temporary_files
from .building import Build, built
from .logs import logs_at, tell
from .outliving import outliving_workers
from .progress import ReadStatus, Speed, counted_since, job_status, shown_progress
from .published import published
from .remote_job import followed, job_id
from .report.job_report import JobReport, check_report, reported
from .report.record import Recorder, looking
from .summary import Outcome, count_lines, model_lines, outcome_of, outcome_so_far, print_summary

_LOOK_SECONDS = 0.2
_SAMPLE_BYTES = 2**20
"""Bytes of a quiet job's input by which its rows are estimated: only `millrace top` may show how much is left."""
_END_SECONDS = 10.0
"""Seconds that workers have to release their resources."""
_log = logging.getLogger(__name__)


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
    return _run_here(built(FnApiRunner(), options, build), options, build, console, before)


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
    with reported(options, _status_reader(options), before) as report, contextlib.ExitStack() as held:
        outcome = outliving_workers(
            pipeline,
            options,
            lambda pipeline, options: _outcome(pipeline, options, console, report.recorder),
            lambda options: _built_again(options, build, held),
        )
        outcome = report.finished(replace(outcome, startup=outcome.startup and outcome.startup + before))
    print_summary(outcome, quiet=options.quiet, stderr=console.file)
    return outcome.status


def _built_again(options: JobOptions, build: Build, held: contextlib.ExitStack) -> beam.Pipeline:
    """The pipeline of a job whose workers are gone. Until `held` ends, the model stays loaded, and answers are kept."""
    earlier = held.pop_all()
    held.enter_context(_opened(options))
    earlier.close()
    return built(FnApiRunner(), options, build)


def _opened(options: JobOptions) -> EngineClient:
    return EngineClient.open(options.model, manager=options.manager, job=options.job, chat=options.chat)


def _outcome(pipeline: beam.Pipeline, options: JobOptions, console: Console, recorder: Recorder | None) -> Outcome:
    files = files_of(options)
    kept = files.current("completions") if files is not None and options.if_exists == "resume" else []
    ends = interruptible(lambda: _what_is_kept(files), also=TERMINATED)
    with ends, _progress(options, _total, console, recorder), _told_what_is_kept(files):
        result = pipeline.run()
        result.wait_until_finish()
    return outcome_of(result, kept, output=options.output, letters=options.letters)


def _run_elsewhere(options: JobOptions, build: Build, console: Console) -> int:
    """Run the job on another runner; print its id, its states, how it ended, and the counts of its job server."""
    with interruptible(lambda: "nothing was submitted", also=STOPPED), named_runner(options.beam) as runner:
        return _await_elsewhere(built(runner, options, build), options, console)


def _await_elsewhere(pipeline: beam.Pipeline, options: JobOptions, console: Console) -> int:
    files = files_of(options)
    kept = files.current("completions") if files is not None and options.if_exists == "resume" else []
    result = None
    to_cancel = _how_to_cancel(options)
    ends = interruptible(lambda: _what_goes_on(options, files, result, to_cancel), also=STOPPED)
    report = JobReport(options, _status_reader(options))
    with ends, hint_at_workers(options.beam), _looked_at(report.recorder), _told_what_is_kept(files):
        result = pipeline.run()
        with _followed(result, options, console, to_cancel):
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
        return "watch and cancel it on Flink's page, or with `curl -X PATCH http://HOST:8081/jobs/ID` (docs: Flink)"
    return "cancel it at its runner"


def _what_goes_on(options: JobOptions, files: OutputFiles | None, result: Any, to_cancel: str) -> str:
    """`result`: None until the runner has said that it has the job."""
    if options.runner.is_on_this_machine:  # its job ends with this process
        return _what_is_kept(files)
    if result is None:
        return "the job was being submitted: if its runner has it, cancel it there"
    name = f"job {job_id(result)}" if isinstance(result, PortableResult) else "the job"
    return f"detached: {name} may still run; {to_cancel}"


def _what_is_kept(files: OutputFiles | None) -> str:
    if files is None:
        return "what was answered is sent"
    if files.interrupted("completions"):
        return f"--resume goes on from what is in {files.temporary}"
    written = files.current("completions")
    return f"what is written is in {written[0]}" if written else "nothing was written"


@contextlib.contextmanager
def _told_what_is_kept(files: OutputFiles | None) -> Iterator[None]:
    """An error that ends the job, such as a full disk, says how to go on if something was written."""
    try:
        yield
    except Exception as error:
        if files is not None and files.interrupted("completions"):
            error.add_note(_what_is_kept(files))
        raise


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _run_stream(options: JobOptions, build: Build, console: Console) -> int:
    if not options.runner.is_on_this_machine:
        return _run_elsewhere(options, build, console)
    _fetch(options)
    return _run_on_prism(options, build, console)


def _run_on_prism(options: JobOptions, build: Build, console: Console) -> int:
    if drains(options):
        _log.warning(
            "what is read of %s is written when its window is over, and until then in Prism's memory alone: Ctrl-C and "
            "SIGTERM wait for it, kill -9 or a failure of the job lose it",
            options.source,
        )
    drain_file(options).unlink(missing_ok=True)  # of the job that this one resumes, if it was killed as it drained
    with contextlib.closing(OwnPrism()) as prism, contextlib.ExitStack() as at_end:
        pipeline = built(prism, options, build)  # from here on the temporary files beside the output are this job's
        at_end.callback(clear_temporary, options)
        ends = interruptible(lambda: _what_comes_again(options), also=STOPPED)
        lines: list[str] = []
        with ends, _printed(lines, console), _progress(options, lambda _: None, console), tallied() as counts:
            result = pipeline.run()
            with _ended_at_interruption(result, options, counts, lines):
                result.wait_until_finish()
    return 0


@contextlib.contextmanager
def _printed(lines: list[str], console: Console) -> Iterator[None]:
    """Print the lines after the block, once the progress line is gone."""
    try:
        yield
    finally:
        for line in lines:
            tell(console, line)


@contextlib.contextmanager
def _ended_at_interruption(result: Any, options: JobOptions, counts: Counter[str], lines: list[str]) -> Iterator[None]:
    """On Ctrl-C, end the job, and add a summary of its results so far to `lines`.

    It is made of `counts`, or, if the workers are other processes, of the runner's metrics.
    """
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            if drains(options):
                _drain(result, drain_file(options))
        at_the_stop = outcome_so_far(counts.copy())
        with contextlib.suppress(Exception):  # the job is to end, whatever error cancelling gives
            result.cancel()
            _wait_for_workers()
        with contextlib.suppress(Exception):  # as above
            outcome = at_the_stop if at_the_stop.rows_read else outcome_of(result)
            lines += [] if options.quiet else count_lines(outcome)
        raise


def _drain(result: Any, file: Path) -> None:
    """Let the job finish the messages it has read and close the windows of its files. These messages are acknowledged
    already, so no other job would get them.
    """
    _log.warning("ending: what was read is answered and written first; a second Ctrl-C would lose it")
    file.touch()
    try:
        while not PipelineState.is_terminal(result.state):
            time.sleep(_LOOK_SECONDS)
    except grpc.RpcError as error:
        _log.warning("Prism is gone, and with it what was read and not written yet: %s", error)
    finally:
        file.unlink(missing_ok=True)


def _wait_for_workers() -> None:
    """Wait until Prism's workers, threads of this process, have released their resources; at most _END_SECONDS."""
    end = time.monotonic() + _END_SECONDS
    for thread in threading.enumerate():
        if thread.name.startswith("run_worker"):
            thread.join(max(end - time.monotonic(), 0))


def _what_comes_again(options: JobOptions) -> str:
    source = options.source
    if isinstance(source, Files):
        again = "" if options.output.is_broker else "; with --resume, what is answered stays and is not asked again"
        return f"the next job on {source} reads all files again{again}"
    if isinstance(source, PubSubAddress) and source.is_topic:
        return f"the next job on {source} gets what is published from its start on"
    return f"the next job on {source} gets what this one did not finish"


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _progress(
    options: JobOptions,
    total: Callable[[JobOptions], RowCount | None],
    console: Console,
    recorder: Recorder | None = None,
) -> Iterator[None]:
    """`recorder`: looks at the manager too, for the report."""
    rows = total(options)
    read_now = _status_reader(options)
    before = job_status(read_now(), options.job)
    with published(options, rows, counted_since(read_now, before)):
        if options.quiet:
            with _looked_at(recorder):
                yield
            return
        is_read = threading.Event()
        with when_reading(is_read.set), tallied() as counts:
            speed = Speed(
                rows, lambda: str(options.source) if is_read.is_set() else "", lambda: failures_in(counts.copy())
            )
            read = counted_since(recorder.read if recorder else read_now, before)
            with shown_progress(read, options.job, speed, console):
                yield


def _looked_at(recorder: Recorder | None) -> contextlib.AbstractContextManager[None]:
    return looking(recorder) if recorder is not None else contextlib.nullcontext()


def _total(options: JobOptions) -> RowCount | None:
    """None of a quiet job that goes on: all of its earlier output would be read to count what is left."""
    files = files_of(options) if options.if_exists == "resume" else None
    if files is not None and options.quiet:
        return None
    budget = _SAMPLE_BYTES if options.quiet else BUDGET
    total = count_rows([str(each) for each in options.input], input_format_of(options), budget, options.limit)
    if files is None:
        return total
    return RowCount(max(total.rows - count_completed(files.prefix), 0), total.exact)


def _status_reader(options: JobOptions) -> ReadStatus:
    """Reads the manager's status; None also if it is starting or too busy to answer. Progress can do without."""

    def read() -> Status | None:
        try:
            return read_status(manager_place(options.manager))
        except MillraceError:
            return None

    return read
