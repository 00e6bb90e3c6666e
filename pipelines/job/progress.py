"""A live line while a job runs: rows done of all, rows/s, tokens/s, time left; below it what failed, and why. Where the
line is too long for the terminal, it stands below its bar. Without a terminal there are plain lines.

Counts come from the manager, polled from a thread; the job itself knows nothing of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from millrace.model_manager.client.status import ReadStatus
from millrace.model_manager.wire.errors import counted
from millrace.model_manager.wire.messages import Status
from millrace.transforms.reading.count import RowCount

from ..pages.sketches import Sample
from ..pages.terminal_lines import BETWEEN, filled
from .logs import tell
from .polling import Clock, Continued, beside, job_status
from .words import generated, left, reasons, rows_of, rows_per_s, tokens_per_s

POLL_SECONDS = 0.5
_PLAIN_EVERY = 10.0
_SPEED_OVER = 10.0
"""Seconds that speeds are averaged over."""
_LONGEST_BAR, _SHORTEST_BAR = 30, 10
_AROUND_BAR = 3
"""Columns of the spinner and of the spaces around the bar."""

_READING = "reading "
_NONE: Mapping[str, int] = {}


class Told(NamedTuple):
    """What progress says."""

    counts: tuple[str, ...]
    """What is done, and how fast."""
    failed: str = ""
    """Failures with their commonest reasons; empty if there are none."""

    def __str__(self) -> str:
        return BETWEEN.join(filter(None, [*self.counts, self.failed]))


class Speed:
    """Rows and tokens a second, lately, and the seconds that are left at this speed."""

    def __init__(
        self,
        total: RowCount | None,
        reading: Callable[[], str] = str,
        failures: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`reading` gives the name of a stream's input once it is read; before that, an empty text. `failures`: rows
        that failed so far, by the classes of their errors, as far as that is known here.
        """
        self.total = total
        self.reading = reading
        self.failures = failures
        self._samples: deque[Sample] = deque()
        self._counts = Continued()

    def add(self, sample: Sample) -> None:
        """Add the latest counts of the manager, and drop the samples that are too old."""
        sample = self._counts.point(sample)
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at - self._samples[1].at > _SPEED_OVER:
            self._samples.popleft()

    def told(self, *, waits: bool = False, refused: Mapping[str, int] = _NONE) -> Told:
        """The progress: `120 of 500 rows   9,600 generated   41.0 rows/s   1,234 tokens/s   0:09 left`. For a stream
        with nothing to do, it says that the stream waits. Failed rows are told apart; if workers are other processes,
        these are failed requests as the manager knows them (`refused`).

        A speed takes two samples, and tokens are told where some are generated: score and embed generate none.
        """
        last = self._samples[-1]
        rows, tokens = self.per_second()
        if waits and self.total is None and not rows and not tokens:
            return Told((f"{rows_of(last.done, None)}, waiting for more",))
        done = rows_of(last.done, self.total.rows, exact=self.total.exact) if self.total else rows_of(last.done, None)
        if last.at <= self._samples[0].at:
            return Told((done,), self._failed(refused))
        speeds = [rows_per_s(rows), *([tokens_per_s(tokens)] if last.tokens else [])]
        made = generated(last.tokens) if last.tokens else ""
        told = [done, made, *speeds, left(self.seconds_left(rows))]
        return Told(tuple(filter(None, told)), self._failed(refused))

    def _failed(self, refused: Mapping[str, int]) -> str:
        if failures := self.failures():
            return f"{sum(failures.values()):,} failed: {reasons(failures)}"
        return f"{counted(sum(refused.values()), 'request')} failed: {reasons(refused)}" if refused else ""

    def fraction(self) -> float:
        """Part of the total that is done, 0 to 1."""
        known = self._samples and self.total and self.total.rows
        return min(self._samples[-1].done / self.total.rows, 1.0) if known and self.total else 0.0

    def per_second(self) -> tuple[float, float]:
        """Rows and tokens, lately."""
        first, last = self._samples[0], self._samples[-1]
        seconds = last.at - first.at
        if seconds <= 0:
            return 0.0, 0.0
        return (last.done - first.done) / seconds, (last.tokens - first.tokens) / seconds

    def seconds_left(self, rows_per_s: float) -> float | None:
        """Seconds left at this speed; None without a total or a speed."""
        if not self.total or rows_per_s <= 0:
            return None
        return max(self.total.rows - self._samples[-1].done, 0) / rows_per_s


def describe(status: Status | None, job: str, speed: Speed, now: float) -> Told:
    """The progress for what the manager says now."""
    found = job_status(status, job)
    loading = [model.model for model in status.models if model.state == "loading"] if status else []
    if loading and (found is None or not found.finished + found.failed):
        return Told((f"loading {loading[0]}",))
    if found is None:
        return Told((f"{_READING}{source}" if (source := speed.reading()) else "starting",))
    speed.add(Sample(now, found.finished + found.failed, found.generated_tokens))
    waits = status is not None and not any(model.outstanding for model in status.models)
    return speed.told(waits=waits, refused=found.failures)


@contextmanager
def shown_progress(
    read: ReadStatus, job: str, speed: Speed, console: Console, clock: Clock = time.monotonic
) -> Iterator[None]:
    """Show progress on the console while the block runs."""
    show = _show_live if console.is_terminal else _show_plain
    with beside(partial(show, read, job, speed, console, clock), "millrace-progress"):
        yield


class _Live(Progress):
    """The bar with the counts beside it, or below if the terminal has no room for both; failures below. Rich would cut
    a line that is too wide.
    """

    def __init__(self, console: Console, total: float | None) -> None:
        self._bar = BarColumn(bar_width=_LONGEST_BAR)
        self._longest = 0
        self._below: list[str] = []
        columns = (SpinnerColumn(), self._bar, TextColumn("{task.description}"))
        # Otherwise rich takes sys.stderr for itself, and shows what logs.py keeps from the terminal.
        super().__init__(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._task: TaskID = self.add_task("starting", total=total)

    def show(self, told: Told, fraction: float) -> None:
        """Show what progress says."""
        beside = BETWEEN.join(told.counts)
        self._longest = max(self._longest, cell_len(beside))  # or it would jump to and fro
        room = self.console.width - self._longest - _AROUND_BAR
        fits = room >= _SHORTEST_BAR
        counts = [] if fits else filled(told.counts, self.console.width)
        self._bar.bar_width = min(room, _LONGEST_BAR) if fits else _LONGEST_BAR
        self._below = [*counts, *([told.failed] if told.failed else [])]
        self.update(self._task, description=beside if fits else "", completed=fraction)

    def get_renderables(self) -> Iterator[RenderableType]:
        """See Progress."""
        yield from super().get_renderables()
        yield from map(Text, self._below)


def _show_live(read: ReadStatus, job: str, speed: Speed, console: Console, clock: Clock, stop: threading.Event) -> None:
    with _Live(console, 1.0 if speed.total else None) as live:
        while not stop.wait(POLL_SECONDS):
            live.show(describe(read(), job, speed, clock()), speed.fraction())


def _show_plain(
    read: ReadStatus, job: str, speed: Speed, console: Console, clock: Clock, stop: threading.Event
) -> None:
    printed_at, printed = clock(), ""
    while not stop.wait(POLL_SECONDS):
        line = str(describe(read(), job, speed, clock()))
        is_due = clock() - printed_at >= _PLAIN_EVERY or line.startswith(_READING)
        if is_due and line != printed:
            tell(console, line)
            printed_at, printed = clock(), line
