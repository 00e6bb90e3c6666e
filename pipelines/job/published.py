"""Says how far a job is to whoever watches this machine: a file in the runtime folder, written once a second.

Counts come from this process's workers. Where workers are other processes, they are the manager's, which begin again
when a manager is replaced, and know nothing of rows that were no prompts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from millrace.model_manager.client.status import ReadStatus
from millrace.model_manager.wire.config import runtime_dir
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.job_progress import JobFile, JobProgress, born, process_space
from millrace.model_manager.wire.runtime import RuntimeDir
from millrace.model_manager.wire.status import JobStatus
from millrace.transforms.elements.beam_metrics import failures_in, tallied
from millrace.transforms.elements.recent_rows import RecentRows, watched_rows
from millrace.transforms.reading.count import RowCount

from ..flags.job_options import JobOptions
from ..pages.sketches import Sample
from .polling import Clock, beside, job_status
from .progress import Speed

_EVERY = 1.0
_log = logging.getLogger(__name__)


class RowTally(NamedTuple):
    """Rows and tokens so far."""

    read: int = 0
    done: int = 0
    failed: int = 0
    failures: Mapping[str, int] = MappingProxyType({})
    """Dead letters by the classes of their errors."""
    prompt_tokens: int = 0
    generated_tokens: int = 0


@contextmanager
def published(
    options: JobOptions, total: RowCount | None, read: ReadStatus, clock: Clock = time.monotonic, every: float = _EVERY
) -> Iterator[None]:
    """Say it while the block runs. A file that cannot be written is no failure of the job."""
    with tallied() as tally, watched_rows(str(options.output)) as rows:
        publisher = _ProgressPublisher(_described(options, total), Speed(total), read, tally, rows)
        with beside(partial(publisher.run, clock, every), "millrace-publish"):
            yield


def _described(options: JobOptions, total: RowCount | None) -> JobProgress:
    """What does not change while the job runs."""
    return JobProgress(
        job=options.job,
        command=options.task.command,
        pid=os.getpid(),
        born=born(os.getpid()),
        space=process_space(),
        started=time.time(),
        model=options.model.model,
        input=", ".join(map(str, options.input)),
        output=str(options.output),
        total=total.rows if total is not None else None,
        exact=total is None or total.exact,
    )


class _ProgressPublisher:
    def __init__(
        self, described: JobProgress, speed: Speed, read: ReadStatus, tally: Counter[str], rows: RecentRows
    ) -> None:
        self._described = described
        self._speed = speed
        self._read = read
        self._tally = tally
        self._rows = rows

    def run(self, clock: Clock, every: float, stop: threading.Event) -> None:
        """Write until the event is set; then nothing is left."""
        folder = RuntimeDir(runtime_dir())
        file = JobFile(folder.path)
        try:
            while True:
                self._write(folder, file, clock())
                if stop.wait(every):
                    return
        finally:
            file.remove()
            folder.leave()

    def _write(self, folder: RuntimeDir, file: JobFile, now: float) -> None:
        progress = self._progress(now)
        try:
            with contextlib.suppress(FileNotFoundError):  # a manager that ended took the folder away: the next time
                folder.prepare()
                file.write(progress)
        except (MillraceError, OSError) as error:
            _log.info("progress is not published: %s", error)

    def _progress(self, now: float) -> JobProgress:
        tally = self._tally.copy()
        managers = None if tally else job_status(self._read(), self._described.job)
        counts = _managers(managers) if managers else counts_of(tally)
        self._speed.add(Sample(now, counts.done + counts.failed, counts.generated_tokens))
        rows_per_s, tokens_per_s = self._speed.per_second()
        return msgspec.structs.replace(
            self._described,
            **counts._asdict(),
            counted_here=managers is None,
            at=time.time(),
            rows_per_s=rows_per_s,
            tokens_per_s=tokens_per_s,
            seconds_left=self._speed.seconds_left(rows_per_s),
            dead_letters=self._rows.failed(),
            rows=self._rows.answered(),
        )


def counts_of(tally: Mapping[str, int]) -> RowTally:
    """Counts of rows from a tally with the names of Beam's counters (transforms/elements/beam_metrics.py)."""
    found = Counter(tally)
    return RowTally(
        read=found["prompts"] + found["unreadable_rows"],
        done=found["requests"] - found["failures"],
        failed=found["failures"] + found["unreadable_rows"],
        failures=failures_in(found),
        prompt_tokens=found["prompt_tokens"],
        generated_tokens=found["generated_tokens"],
    )


def _managers(job: JobStatus) -> RowTally:
    return RowTally(0, job.finished, job.failed, job.failures, job.prompt_tokens, job.generated_tokens)
