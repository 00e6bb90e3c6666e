"""ReadPrompts: files, by glob, from any Beam file system → Prompts, and the rows that are none.

match files ─► split into ranges ─► redistribute ─► read rows ─► prompts, dead letters
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystem import FileMetadata
from apache_beam.metrics import Metrics
from apache_beam.transforms.display import DisplayDataItem

from model_manager.wire.errors import ConfigError, ErrorInfo
from transforms.elements import DEAD_LETTERS, DeadLetter, Prompt
from transforms.file_ranges import FileRange, match_files, split_file
from transforms.formats import checked_input_format, input_format
from transforms.metrics import NAMESPACE
from transforms.near_misses import NearMisses
from transforms.read_rows import MAX_ROW_BYTES, read_range
from transforms.rows import RowShape


class ReadPrompts(beam.PTransform):
    """Prompts of JSONL, text, CSV and Parquet files, compressed or not; rows without an id get a stable one.

    A row that is no prompt fails the job with its place and reason; `with_exception_handling()` instead gives
    `(prompts, dead_letters)` and goes on. Rows have the shapes that rows.py describes. An id that is not given is the
    row's position (positions.py), with the path as it was matched: the same pattern gives the same ids from run to run.
    Explicit ids are taken as they are; rows that share one are all read.

    Raises ConfigError, when applied, for a pattern that matches nothing or a file of no known format.
    """

    def __init__(
        self,
        patterns: str | Sequence[str],
        *,
        input_format: str | None = None,
        prompt_column: str | None = None,
        id_column: str | None = None,
        row_params: bool = True,
        max_row_bytes: int = MAX_ROW_BYTES,
        fail_fast: bool = False,
    ) -> None:
        """`patterns`: one or more paths or globs. `input_format`: jsonl, text, csv or parquet; by default by extension.

        `row_params=False` reads no sampling parameters from rows.
        """
        super().__init__()
        self._patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        if not self._patterns:
            raise ConfigError("input: takes at least one path or glob")
        self._format = input_format and checked_input_format(input_format)
        self._shape = RowShape(prompt_column=prompt_column, id_column=id_column, row_params=row_params)
        self._max_row_bytes = max_row_bytes
        self._fail_fast = fail_fast
        self._handles_exceptions = False

    def with_exception_handling(self) -> ReadPrompts:
        """Give `(prompts, dead_letters)`; no row fails the job, unless `fail_fast`."""
        self._handles_exceptions = True
        return self

    def expand(self, root: Any) -> Any:
        for file in match_files(self._patterns):
            input_format(file.path, self._format)
        reader = _ReadRange(self._shape, self._max_row_bytes, strict=self._fail_fast or not self._handles_exceptions)
        rows = (
            root
            | "Patterns" >> beam.Create([self._patterns])
            | "Match" >> beam.FlatMap(match_files).with_output_types(FileMetadata)
            | "Spread files" >> beam.Reshuffle()
            | "Split" >> beam.FlatMap(split_file, self._format).with_output_types(FileRange)
            | "Spread ranges" >> beam.Reshuffle()
            | "Read rows" >> beam.ParDo(reader).with_outputs(DEAD_LETTERS, main="prompts")
        )
        prompts = rows.prompts
        prompts.element_type, rows[DEAD_LETTERS].element_type = Prompt, DeadLetter
        return (prompts, rows[DEAD_LETTERS]) if self._handles_exceptions else prompts

    def display_data(self) -> dict[str, Any]:
        return {
            "patterns": DisplayDataItem(", ".join(self._patterns), label="Files"),
            "input_format": DisplayDataItem(self._format or "by extension", label="Format"),
        }


class _ReadRange(beam.DoFn):
    def __init__(self, shape: RowShape, max_row_bytes: int, *, strict: bool) -> None:
        self._shape = shape
        self._max_row_bytes = max_row_bytes
        self._strict = strict
        self._near_misses = NearMisses()
        self._unreadable = Metrics.counter(NAMESPACE, "unreadable_rows")

    def process(self, part: FileRange) -> Iterator[Any]:
        for row in read_range(part, self._shape, self._max_row_bytes):
            if isinstance(row, Prompt):
                if self._shape.row_params:
                    self._near_misses.look(row.columns)
                yield row
                continue
            self._unreadable.inc()
            if self._strict:
                raise ErrorInfo(kind=row.error, message=f"{row.source}: {row.reason}").exception()
            yield beam.pvalue.TaggedOutput(DEAD_LETTERS, row)
