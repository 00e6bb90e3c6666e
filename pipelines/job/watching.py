"""Watches a job's progress while it runs: who shows it, and how many rows there will be."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from rich.console import Console

from millrace.model_manager.client.status import ReadStatus, read_status
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.manager_place import manager_place
from millrace.model_manager.wire.messages import Status
from millrace.transforms.elements.beam_metrics import failures_in, tallied
from millrace.transforms.reading.count import BUDGET, RowCount, count_rows
from millrace.transforms.streams.readers import when_reading
from millrace.transforms.writing.completed_rows import count_completed

from ..flags.job_options import JobOptions
from ..places.sources_and_sinks import files_of, input_format_of
from .polling import counted_since, job_status
from .progress import Speed, shown_progress
from .published import published
from .report.recording import Recorder, looking

_SAMPLE_BYTES = 2**20
"""Bytes of a quiet job's input by which its rows are estimated: only `millrace top` may show how much is left."""


@contextlib.contextmanager
def watched(options: JobOptions, console: Console, recorder: Recorder | None = None) -> Iterator[None]:
    """While the block runs, show how far the job is, here and to `millrace top`. `recorder` looks at the manager too,
    for the report.
    """
    rows = None if options.is_stream else _total(options)
    read_now = status_reader(options)
    before = job_status(read_now(), options.job)
    with published(options, rows, counted_since(read_now, before)):
        if options.quiet:
            with looked_at(recorder):
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


def looked_at(recorder: Recorder | None) -> contextlib.AbstractContextManager[None]:
    """While the block runs, let the recorder look by itself: nothing is shown that would make it look."""
    return looking(recorder) if recorder is not None else contextlib.nullcontext()


def status_reader(options: JobOptions) -> ReadStatus:
    """Reads the manager's status; None also if it is starting or too busy to answer. Progress can do without."""

    def read() -> Status | None:
        try:
            return read_status(manager_place(options.manager))
        except MillraceError:
            return None

    return read


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
