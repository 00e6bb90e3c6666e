"""ReadPrompts: files, by glob, from any Beam file system → Prompts, and the rows that are none.

match files ─► split into ranges ─► redistribute ─► read rows ─► prompts, dead letters
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import apache_beam as beam
from apache_beam.io.filesystem import FileMetadata
from apache_beam.transforms.display import DisplayDataItem

from millrace.model_manager.wire.errors import ConfigError

from ..files.formats import checked_input_format, input_format
from .file_ranges import FileRange, match_files, split_file
from .prompt_reader import PromptReader, ReaderSettings, RowsDoFn
from .read_rows import read_range


class ReadPrompts(PromptReader):
    """Prompts of JSONL, text, CSV and Parquet files, compressed or not, or of files each read whole, which have their
    paths for ids; rows without an id get a stable one.

    A row that is no prompt fails the job with its place and reason; `with_exception_handling()` instead gives
    `(prompts, dead_letters)` and goes on. Rows have the shapes that prompt_rows.py describes. An id that is not given
    is the position of the row (positions.py), with the path as it was matched: the same pattern gives the same ids from
    run to run. Explicit ids are taken as they are; rows that share one are all read.

    Raises ConfigError, when applied, for a pattern that matches nothing or a file of no known format.
    """

    def __init__(self, patterns: str | Sequence[str], **rows: Unpack[ReaderSettings]) -> None:
        """`patterns`: one or more paths or globs. `input_format`: jsonl, text (a line a row), csv, parquet, file (each
        whole) or documents (JSONL, CSV and Parquet by their extensions, every other file whole); by default by
        extension.

        `rows`: as PromptReader takes them.
        """
        super().__init__(**rows)
        self._patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        if not self._patterns:
            raise ConfigError("input: takes at least one path or glob")
        if self._format:
            checked_input_format(self._format)

    def expand(self, root: Any) -> Any:
        for file in match_files(self._patterns):
            input_format(file.path, self._format)
        reader = ReadRange(self._shape, self._max_row_bytes, strict=self._strict)
        ranges = (
            root
            | "Patterns" >> beam.Create([self._patterns])
            | "Match" >> beam.FlatMap(match_files).with_output_types(FileMetadata)
            | "Spread files" >> beam.Reshuffle()
            | "Split" >> beam.FlatMap(split_file, self._format).with_output_types(FileRange)
            | "Spread ranges" >> beam.Reshuffle()
        )
        return self._outputs(*self._rows("Read rows", ranges, reader))

    def display_data(self) -> dict[str, Any]:
        return {
            "patterns": DisplayDataItem(", ".join(self._patterns), label="Files"),
            "input_format": DisplayDataItem(self._format or "by extension", label="Format"),
        }


class ReadRange(RowsDoFn):
    """A range → its prompts."""

    def process(self, part: FileRange) -> Iterator[Any]:
        yield from self._sorted(read_range(part, self._shape, self._max_row_bytes))
