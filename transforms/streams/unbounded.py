"""The common part of unbounded readers: where they begin to read, when they pause, and the stream's time.

Knows no broker. A reader is a splittable DoFn whose restriction is `PositionRange`: everything from a position on. It
reads for a turn, then gives back the rest (`defer_remainder`), so that the bundle ends and its results are committed.
The broker hears of it after that: messages are acknowledged, offsets committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Duration, Timestamp

from ..elements.completions import StructCoder

END = 2**62
"""Claimed by a reader that is to read no more: nothing is left after it."""
IDLE_LAG_SECONDS = 2.0
"""How far the watermark of a source that has nothing stays behind the clock: what is on its way may be that old."""
_LOOK_SECONDS = 0.2
_APART_SECONDS = 0.02
_MAX_APART = 8


class PositionRange(msgspec.Struct, frozen=True):
    """Positions from `start` on; up to `stop`, exclusive, once the tracker was split there."""

    start: int
    stop: int | None = None


beam.coders.registry.register_coder(PositionRange, StructCoder)


class PositionTracker(RestrictionTracker):
    """Claims positions in order. Only the reader itself splits it, when it pauses: one reader at a time reads in order,
    so that a committed position covers all earlier ones.
    """

    def __init__(self, span: PositionRange) -> None:
        self._span = span
        self._next = span.start

    def current_restriction(self) -> PositionRange:
        return self._span

    def try_claim(self, position: int) -> bool:
        assert position >= self._next, f"{position} is claimed after {self._next - 1}"
        if self._span.stop is not None:
            return False
        if position == END:
            self._span = PositionRange(self._span.start, self._next)
            return False
        self._next = position + 1
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[PositionRange, PositionRange] | None:
        if fraction_of_remainder or self._span.stop is not None:
            return None
        self._span = PositionRange(self._span.start, self._next)
        return self._span, PositionRange(self._next)

    def check_done(self) -> bool:
        if self._span.stop is None:
            raise ValueError(f"the reader ended without giving back what is after {self._next}")
        return True

    def current_progress(self) -> RestrictionProgress:
        # Given a fraction, Beam keeps to it. Otherwise it goes by the bytes it counted, which for a moment after the
        # first element are not a number; a runner that asks for a split just then ends the job.
        done = self._next - self._span.start
        return RestrictionProgress(fraction=done / (done + 1), remaining=1)

    def is_bounded(self) -> bool:
        return False


class FromStart(RestrictionProvider):
    """The restriction of elements that have a `start`."""

    def initial_restriction(self, element: Any) -> PositionRange:
        return PositionRange(element.start)

    def create_tracker(self, restriction: PositionRange) -> PositionTracker:
        return PositionTracker(restriction)

    def restriction_size(self, _element: Any, _restriction: PositionRange) -> float:
        return 1.0

    def restriction_coder(self) -> StructCoder:
        return StructCoder(PositionRange)


FROM_START = beam.DoFn.RestrictionParam(FromStart())
OWN_WATERMARK = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider())
"""Parameters of a reader's `process`."""


class ReadingTurn:
    """How long a reader goes on before it pauses: long enough to keep an engine busy, short enough to commit often."""

    MAX_SECONDS = 5.0
    MAX_MESSAGES = 10_000

    def __init__(self, drain: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`drain`: a file on this machine; once it is there, nothing more is to be read."""
        self._drain = drain
        self._clock = clock
        self._end = clock() + self.MAX_SECONDS
        self._next_look = clock()
        self._count = 0

    def took(self, count: int = 1) -> None:
        """Count messages that were read."""
        self._count += count

    @property
    def is_over(self) -> bool:
        """Whether to pause."""
        now = self._clock()
        if self._count >= self.MAX_MESSAGES or now >= self._end:
            return True
        if now < self._next_look:  # it is asked for each message
            return False
        self._next_look = now + _LOOK_SECONDS
        return self.is_last

    @property
    def is_last(self) -> bool:
        """True if no turn follows the pause."""
        return self._drain is not None and Path(self._drain).exists()


def pause(number: int) -> Duration:
    """After which the reader of this number goes on. Readers go on a little apart from each other: a runner that makes
    one bundle of all that is due (Prism) would have them wait for one another.
    """
    return Duration(micros=round(1e6 * _APART_SECONDS * (number % _MAX_APART)))


class StreamTime:
    """The timestamps of a reader's elements, and its watermark, which follows them.

    A timestamp behind the watermark is raised to it: nothing is late, so no window drops anything. A timestamp ahead of
    the clock is lowered to it: otherwise one wrongly dated message would stop the stream's time.
    """

    def __init__(self, estimator: Any, clock: Callable[[], float] = time.time) -> None:
        """`estimator`: a ManualWatermarkEstimator."""
        self._estimator = estimator
        self._clock = clock

    def of(self, seconds: float) -> Timestamp:
        """The timestamp of an element that the broker dates `seconds` since the epoch."""
        reached = self._estimator.current_watermark()
        stamp = Timestamp(min(seconds, self._clock()))
        if reached is not None and reached >= stamp:
            return reached
        self._estimator.set_watermark(stamp)
        return stamp

    def idle(self) -> None:
        """The source has nothing: time goes on."""
        self.of(self._clock() - IDLE_LAG_SECONDS)


class Finals:
    """Tells the broker what is final: at once, or on Flink one finalization later.

    When a checkpoint completes, Flink finalizes every bundle that has ended, even a bundle that began after the
    checkpoint and is not in it. A bundle that was final when another one began is in the checkpoint that finalizes the
    other one.
    """

    def __init__(self, tell: Callable[[list[Any]], None], *, late: bool) -> None:
        """`tell` gets what to acknowledge; `late`: on Flink. For any thread."""
        self._tell = tell
        self._late = late
        self._lock = threading.Lock()
        self._final = dict[Any, None]()

    def seen(self) -> list[Any]:
        """What is final and not reported yet; called when a bundle begins."""
        with self._lock:
            return list(self._final)

    def on_final(self, seen: list[Any], read: list[Any]) -> None:
        """The bundle is final that began when `seen` was so, and that read `read`."""
        if not self._late:
            self._tell(read)
            return
        with self._lock:
            due = [each for each in seen if each in self._final]
            for each in due:
                del self._final[each]
            self._final.update(dict.fromkeys(read))
        self._tell(due)
