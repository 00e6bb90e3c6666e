"""ReadPrompts: files, by glob, from any Beam file system → Prompts, and the rows that are none.

match files ─► split into ranges ─► redistribute ─► read rows ─► prompts, dead letters

On Beam's local runner each worker reads its ranges in order, and the same ranges in each run: a job that goes on asks
first what was running, or was answered and not written.

With a limit one worker reads the first rows, and no file beyond them; then they are redistributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Unpack

import apache_beam as beam
from apache_beam.io.filesystem import FileMetadata
from apache_beam.transforms.display import DisplayDataItem

from millrace.model_manager.wire.errors import ConfigError

from ..elements.prompt_rows import RowShape
from ..files.formats import checked_input_format, input_format
from ..runners import running
from .file_ranges import FileRange, match_files, match_files_and_warn, split_file
from .prompt_reader import PromptReader, ReaderSettings, RowsDoFn
from .read_rows import read_range
from .row_letters import shortened


class ReadPrompts(PromptReader):
    """Prompts of JSONL, text, CSV and Parquet files, compressed or not, or of files each read whole, which have their
    paths for ids; rows without an id get a stable one.

    A row that is no prompt fails the job with its place and reason; `with_exception_handling()` instead gives
    `(prompts, dead_letters)` and goes on. Rows have the shapes that prompt_rows.py describes. An id that is not given
    is the position of the row (positions.py), with the path as it was matched: the same pattern gives the same ids from
    run to run. Explicit ids are taken as they are; rows that share one are all read.

    Raises ConfigError, when applied, for a pattern that matches nothing or a file of no known format.
    """

    def __init__(
        self, patterns: str | Sequence[str], *, limit: int | None = None, **rows: Unpack[ReaderSettings]
    ) -> None:
        """`patterns`: one or more paths or globs. `input_format`: jsonl, text (a line a row), csv, parquet, file (each
        whole) or documents (JSONL, CSV and Parquet by their extensions, every other file whole); by default by
        extension. `limit`: read the first rows only, good or not; files are read in the order of their names.

        `rows`: as PromptReader takes them.
        """
        super().__init__(**rows)
        self._patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        if not self._patterns:
            raise ConfigError("input: takes at least one path or glob")
        if self._format:
            checked_input_format(self._format)
        if limit is not None and limit < 1:
            raise ConfigError(f"limit={limit}: takes a number of rows, 1 or more")
        self._limit = limit

    def expand(self, root: Any) -> Any:
        for file in match_files_and_warn(self._patterns):
            input_format(file.path, self._format)
        patterns = root | "Patterns" >> beam.Create([self._patterns])
        if self._limit is not None:
            first = ReadFirst(self._limit, self._format, self._shape, self._max_row_bytes, strict=self._strict)
            prompts, letters = self._rows("Read rows", patterns, first)
            return self._outputs(prompts | "Spread rows" >> beam.Reshuffle(), letters)
        reader = ReadRange(self._shape, self._max_row_bytes, strict=self._strict)
        ranges = (
            patterns
            | "Match" >> beam.FlatMap(match_files).with_output_types(FileMetadata)
            | "Spread files" >> beam.Reshuffle()
            | "Split" >> beam.FlatMap(split_file, self._format).with_output_types(FileRange)
        )
        if running(root.pipeline.runner).is_local:
            ranges = ranges | "In order" >> _InOrder()
        ranges = ranges | "Spread ranges" >> beam.Reshuffle()
        return self._outputs(*self._rows("Read rows", ranges, reader))

    def display_data(self) -> dict[str, Any]:
        return {
            "patterns": DisplayDataItem(", ".join(self._patterns), label="Files"),
            "input_format": DisplayDataItem(self._format or "by extension", label="Format"),
        }


class _InOrder(beam.PTransform):
    """Ranges as several workers split files, → by file and place, from one worker. The local runner spreads what it has
    in order over workers in order.
    """

    def expand(self, ranges: Any) -> Any:
        return (
            ranges
            | "Together" >> beam.Map(lambda part: ("", part)).with_output_types(tuple[str, FileRange])
            | "All" >> beam.GroupByKey()
            | "Sort" >> beam.FlatMap(_by_place).with_output_types(FileRange)
        )


def _by_place(ranges: tuple[str, Iterable[FileRange]]) -> list[FileRange]:
    return sorted(ranges[1], key=lambda part: (part.path, part.start))


class ReadRange(RowsDoFn):
    """A range → its prompts."""

    def process(self, part: FileRange) -> Iterator[Any]:
        yield from self._sorted(map(shortened, read_range(part, self._shape, self._max_row_bytes)))


class ReadFirst(RowsDoFn):
    """Patterns → the first rows of their files. Opens no file that it needs no row of."""

    def __init__(
        self, limit: int, input_format: str | None, shape: RowShape, max_row_bytes: int, *, strict: bool
    ) -> None:
        super().__init__(shape, max_row_bytes, strict=strict)
        self._limit = limit
        self._format = input_format

    def process(self, patterns: list[str]) -> Iterator[Any]:
        parts = (part for file in match_files(patterns) for part in split_file(file, self._format))
        rows = (row for part in parts for row in read_range(part, self._shape, self._max_row_bytes))
        yield from self._sorted(map(shortened, islice(rows, self._limit)))
