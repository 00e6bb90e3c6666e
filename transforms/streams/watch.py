"""WatchPrompts: the files that come into a folder or a bucket, each read once → Prompts, and the rows that are none.

look, again and again ─► new files ─► split into ranges ─► read rows ─► redistribute ─► prompts, dead letters

Which files are new is known by Beam's Watch, which keeps that in the runner's checkpoints; what a file holds, by
reading/read_rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import time as wall_clock
from typing import Any, Unpack

import apache_beam as beam
from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.watch import PollFn, PollResult, Watch, after_total_of, never
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.errors import ConfigError, StorageError

from ..elements.beam_metrics import Count, Failures
from ..elements.completions import DEAD_LETTERS, DeadLetter
from ..elements.recent_rows import tell_failed
from ..files.file_systems import match
from ..reading.file_ranges import FileRange, split_file
from ..reading.prompt_reader import ReaderSettings
from ..reading.read_prompts import ReadPrompts, ReadRange
from ..reading.row_letters import UnreadableFile
from .readers import tell_reading

_WHOLE_AT_ONCE = ("gs", "s3", "azfs")
"""Schemes of object stores: an object is not there before it is complete."""


class WatchPrompts(ReadPrompts):
    """The prompts of files that match, now or later, until the job is stopped.

    A file is read once, when it is complete: in an object store as soon as it is listed, elsewhere when it holds
    something and was not modified for `settle` seconds. Files of a name that was read before, and lines added to one,
    are not read. Rows have the shapes and ids that ReadPrompts gives them, and the timestamp of their file: when it was
    modified. No row is ever late: one whose file is older than what was read before, since it was moved here, has the
    time of the look that found it instead, less the few looks that the watermark stays behind the clock.

    A row that is no prompt, a file of no known format and one that is gone, or another, before it was read fail the job
    with their place and reason; `with_exception_handling()` gives `(prompts, dead_letters)` and goes on. What an object
    store still fails after all tries counts as gone, from there on.

    Of each file that was read 16 bytes are kept for as long as the job runs. Takes a runner of streams, with
    checkpoints where it has them (docs/how-to/streams.md).
    """

    def __init__(
        self,
        patterns: str | Sequence[str],
        *,
        interval: float = 5.0,
        settle: float = 2.0,
        stop_after: float | None = None,
        **rows: Unpack[ReaderSettings],
    ) -> None:
        """`interval`: seconds from look to look. `stop_after`: seconds after which none follows; by default never.

        `rows`: as PromptReader takes them. Raises ConfigError.
        """
        super().__init__(patterns, **rows)
        for pattern in self._patterns:
            _check_file_system(pattern)
        if not interval > 0:
            raise ConfigError(f"interval={shown(interval)}: takes seconds, more than 0")
        if not settle >= 0:
            raise ConfigError(f"settle={shown(settle)}: takes seconds, 0 or more")
        if stop_after is not None and not stop_after > 0:
            raise ConfigError(f"stop_after={shown(stop_after)}: takes seconds, more than 0")
        self._interval = interval
        self._look = PollPatterns(interval, settle)
        self._termination = never() if stop_after is None else after_total_of(stop_after)

    def expand(self, root: Any) -> Any:
        watch = Watch(self._look, self._interval, self._termination, output_key_fn=_path)
        reader = _ReadRange(self._shape, self._max_row_bytes, strict=self._strict)
        split = (
            root
            | "Patterns" >> beam.Create([self._patterns])
            | "Started" >> beam.Map(lambda patterns: (patterns, wall_clock()))
            | "Watch" >> watch
            | "Found" >> beam.Values().with_output_types(FileMetadata)
            | "Spread files" >> beam.Reshuffle()
            | "Split" >> beam.ParDo(_Split(self._format, strict=self._strict)).with_outputs(DEAD_LETTERS, main="ranges")
        )
        split.ranges.element_type, split[DEAD_LETTERS].element_type = FileRange, DeadLetter
        prompts, letters = self._rows("Read rows", split.ranges | "Spread ranges" >> beam.Reshuffle(), reader)
        prompts = prompts | "Spread rows" >> beam.Reshuffle()  # so that a bundle is smaller than a range
        return self._outputs(prompts, (split[DEAD_LETTERS], letters) | "Unreadable" >> beam.Flatten())

    def display_data(self) -> dict[str, Any]:
        return super().display_data() | {"interval": DisplayDataItem(self._interval, label="Seconds between looks")}


class PollPatterns(PollFn):
    """One look at the patterns: the files that are complete, with their timestamps, and how far the watermark is.

    Keeps nothing from look to look, since any worker may take the next one. The watermark stays so far behind the clock
    that a file which was not complete at one look is not late at the next. It does not move before the first
    interval is over: so the files that were there at the start keep their times, however old they are.
    """

    def __init__(self, interval: float, settle: float) -> None:
        """`interval` and `settle` are in seconds."""
        self._interval = interval
        self._settle = settle
        self._behind = settle + 2 * interval

    def __call__(self, watched: tuple[list[str], float]) -> PollResult[FileMetadata]:
        """`watched`: the patterns, and since when, by the wall clock."""
        patterns, started = watched
        tell_reading()
        now = wall_clock()
        watermark = MIN_TIMESTAMP if now < started + self._interval else Timestamp.of(now - self._behind)
        found = {str(file.path): file for pattern in patterns for file in match(pattern)}
        complete = [file for file in found.values() if self._is_complete(file, now)]
        timestamped = [
            TimestampedValue(file, max(Timestamp.of(file.last_updated_in_seconds), watermark)) for file in complete
        ]
        return PollResult.incomplete(timestamped).with_watermark(watermark)

    def _is_complete(self, file: FileMetadata, now: float) -> bool:
        if FileSystems.get_scheme(file.path) in _WHOLE_AT_ONCE:
            return True
        return bool(file.size_in_bytes > 0 and now - file.last_updated_in_seconds >= self._settle)


def _path(file: FileMetadata) -> str:
    return str(file.path)


class _Split(beam.DoFn):
    def __init__(self, named_format: str | None, *, strict: bool) -> None:
        self._format = named_format
        self._strict = strict
        self._unreadable = Count("unreadable_rows")
        self._failures = Failures()

    def process(self, file: FileMetadata) -> Iterator[Any]:
        try:
            yield from split_file(file, self._format)
        except (ConfigError, FileNotFoundError, StorageError) as error:
            if self._strict:
                raise
            letter = _letter(file.path, error)
            self._unreadable.inc()
            self._failures.count(letter.error)
            yield beam.pvalue.TaggedOutput(DEAD_LETTERS, _told(letter))


class _ReadRange(ReadRange):
    def process(self, part: FileRange) -> Iterator[Any]:
        try:
            yield from super().process(part)
        except (FileNotFoundError, StorageError) as error:
            if self._strict:
                raise
            letter = _letter(part.path, error)
            self._unreadable.inc()
            self._failures.count(letter.error)
            yield beam.pvalue.TaggedOutput(DEAD_LETTERS, _told(letter))


def _told(letter: DeadLetter) -> DeadLetter:
    tell_failed(letter)
    return letter


def _letter(path: str, error: Exception) -> DeadLetter:
    is_gone = isinstance(error, FileNotFoundError)
    reason = "the file is gone; it was there when it was found" if is_gone else str(error)
    return DeadLetter(id=path, error=UnreadableFile.__name__, reason=reason, source=path)


def _check_file_system(pattern: str) -> None:
    try:
        FileSystems.get_filesystem(pattern)
    except ValueError as error:
        raise ConfigError(f"{pattern}: {error}") from None
