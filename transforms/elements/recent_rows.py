"""The latest rows of this process: how long each took, or why it failed. Kept only while somebody watches.

Where workers are other processes, nothing of their rows is known here. No prompt and no answer is kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import time as wall_clock

from millrace.model_manager.wire.job_progress import FailedRow, RowLife, spans
from millrace.model_manager.wire.timings import Timings

from .completions import Completion, DeadLetter
from .task_results import Result

_MOST = 20
"""Rows that are kept, of answered ones and of failed ones."""
_LONGEST = 300
"""Characters of a reason."""
_LONGEST_ID = 200
"""Characters of a row's id."""


class RecentRows:
    """The rows of one job; threads add, and another reads."""

    def __init__(self, job: str) -> None:
        """`job`: how the rows name it."""
        self._job = job
        self._lock = threading.Lock()
        self._answered = deque[RowLife](maxlen=_MOST)
        self._failed = deque[FailedRow](maxlen=_MOST)

    def answered(self) -> list[RowLife]:
        """The latest answered rows, the latest last."""
        with self._lock:
            return [*self._answered]

    def failed(self) -> list[FailedRow]:
        """The latest failed rows, the latest last."""
        with self._lock:
            return [*self._failed]

    def add_answered(self, result: Completion | Result, timings: Timings) -> None:
        """A row that the model answered."""
        usage = result.usage
        queued, prefill, decode = spans(timings, usage.completion_tokens)
        life = RowLife(
            at=wall_clock(),
            of=self._job,
            id=_cut(result.id, _LONGEST_ID),
            queued=queued,
            prefill=prefill,
            decode=decode,
            prompt_tokens=usage.prompt_tokens,
            generated_tokens=usage.completion_tokens,
        )
        with self._lock:
            self._answered.append(life)

    def add_failed(self, letter: DeadLetter) -> None:
        """A row that is a dead letter."""
        reason = _cut(letter.reason, _LONGEST)
        failed = FailedRow(at=wall_clock(), job=self._job, error=letter.error, reason=reason, source=letter.source)
        with self._lock:
            self._failed.append(failed)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


_watching: list[RecentRows] = []


@contextmanager
def watched_rows(job: str) -> Iterator[RecentRows]:
    """The rows of this process while the block runs."""
    rows = RecentRows(job)
    _watching.append(rows)
    try:
        yield rows
    finally:
        _watching[:] = [each for each in _watching if each is not rows]


def tell_answered(result: Completion | Result) -> None:
    """A row is answered."""
    if result.timings is not None:
        for each in _watching:
            each.add_answered(result, result.timings)


def tell_failed(letter: DeadLetter) -> None:
    """A row is a dead letter."""
    for each in _watching:
        each.add_failed(letter)
