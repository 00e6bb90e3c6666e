"""A stream that runs on Prism until it is stopped: what happens then to what it has read."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.runners.runner import PipelineState
from rich.console import Console

from millrace.transforms.addresses import Files, PubSubAddress
from millrace.transforms.elements.beam_metrics import tallied
from millrace.transforms.streams.readers import give_back_uncommitted

from ..flags.job_options import JobOptions
from ..interrupts import STOPPED, interrupt_held, interruptible
from ..places.sources_and_sinks import clear_temporary, drain_file, drains
from ..runners.prism import OwnPrism
from .logs import tell
from .summary import count_lines, outcome_of, outcome_so_far, place_line
from .watching import watched

_LOOK_SECONDS = 0.2
_END_SECONDS = 10.0
"""Seconds that workers have to release their resources."""
_ENDS_ONCE_SUBMITTED = "ending as soon as Prism has the job; a second Ctrl-C ends it now"
_log = logging.getLogger(__name__)


def run_on_prism(options: JobOptions, built: Callable[[Any], beam.Pipeline], console: Console) -> int:
    """Run what is `built` for a runner until it is stopped, or fails; returns the exit status."""
    if drains(options):
        _log.warning(
            "what is read of %s is written when its window is over, and until then in Prism's memory alone: Ctrl-C and "
            "SIGTERM wait for it, kill -9 or a failure of the job lose it",
            options.source,
        )
    drain_file(options).unlink(missing_ok=True)  # of the job that this one resumes, if it was killed as it drained
    with _messages_given_back(), contextlib.closing(OwnPrism()) as prism, contextlib.ExitStack() as at_end:
        pipeline = built(prism)  # from here on the temporary files beside the output are this job's
        at_end.callback(clear_temporary, options)
        ends = interruptible(lambda: _what_comes_again(options), also=STOPPED)
        lines: list[str] = []
        with ends, _printed(lines, console), watched(options, console), tallied() as counts:
            submitted = _Submitted()
            with _ended_at_interruption(submitted, options, counts, lines):
                with interrupt_held(_ENDS_ONCE_SUBMITTED):  # Prism may have the job, and it read, before `run` returns
                    submitted.result = pipeline.run()
                submitted.result.wait_until_finish()
    return 0


@dataclass
class _Submitted:
    """The job, once Prism has it."""

    result: Any = None


@contextlib.contextmanager
def _printed(lines: list[str], console: Console) -> Iterator[None]:
    """Print the lines after the block, once the progress line is gone."""
    try:
        yield
    finally:
        for line in lines:
            tell(console, line)


@contextlib.contextmanager
def _ended_at_interruption(
    submitted: _Submitted, options: JobOptions, counts: Counter[str], lines: list[str]
) -> Iterator[None]:
    """End the job on Ctrl-C, and add a summary of its results so far to `lines`.

    The summary is made of `counts`, or, if the workers are other processes, of the runner's metrics.
    """
    try:
        yield
    except KeyboardInterrupt:
        if (result := submitted.result) is None:
            raise
        with contextlib.suppress(KeyboardInterrupt):
            if drains(options):
                _drain(result, drain_file(options))
        at_the_stop = outcome_so_far(counts.copy())
        with contextlib.suppress(Exception):  # the job is to end, whatever error cancelling gives
            result.cancel()
        _wait_for_workers()
        with contextlib.suppress(Exception):  # as above
            outcome = at_the_stop if at_the_stop.rows_read else outcome_of(result)
            if not options.quiet and (counts_of_rows := count_lines(outcome)):
                lines += counts_of_rows
                lines.append(place_line(options.output))
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


@contextlib.contextmanager
def _messages_given_back() -> Iterator[None]:
    """However the block ends, and Prism with it: others get at once what was read and is not answered."""
    try:
        yield
    finally:
        give_back_uncommitted()


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
