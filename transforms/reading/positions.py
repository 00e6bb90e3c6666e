"""Where a row stands, which is its id where it has no other: a name for it, and finding it again by that name.

`prompts.jsonl@1234` is the line that begins at byte 1234 of the (uncompressed) file, from 0: files of lines are read in
ranges from anywhere, where nobody knows how many lines are before. `table.csv#17` is the 17th row of CSV or Parquet, a
header not counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.filesystems import BeamIOError

from millrace.model_manager.wire.errors import ConfigError

from ..elements.completions import DeadLetter, Prompt
from ..elements.prompt_rows import RowShape
from ..files.formats import InputFormat, input_format, is_compressed
from .file_ranges import FileRange, split_file
from .read_rows import read_range
from .row_letters import LINE_MARK, ROW_MARK

_POSITION = re.compile(rf"(.+)([{LINE_MARK}{ROW_MARK}])(\d+)", re.DOTALL)


class Position(NamedTuple):
    """A row's place."""

    path: str
    mark: str
    number: int
    """Its first byte, from 0, or its number, from 1: as the mark says."""

    @classmethod
    def parse(cls, text: str) -> Position:
        """From `<path>@<byte>` or `<path>#<row>`; raises ConfigError for anything else."""
        found = _POSITION.fullmatch(text)
        if found is None:
            raise ConfigError(f"{text}: takes <path>{LINE_MARK}<byte> or <path>{ROW_MARK}<row>")
        return cls(found[1], found[2], int(found[3]))

    def __str__(self) -> str:
        return f"{self.path}{self.mark}{self.number}"


def find_row(position: Position, shape: RowShape, named_format: str | None = None) -> Prompt | DeadLetter:
    """The row, as it is read there; ConfigError where none is."""
    form = input_format(position.path, named_format)
    if form == "file":
        raise ConfigError(f"{position}: a file that is read whole is one row; takes jsonl, text, csv or parquet")
    if (position.mark == LINE_MARK) != (form in ("jsonl", "text")):
        takes = f"{ROW_MARK}<row>" if position.mark == LINE_MARK else f"{LINE_MARK}<byte>"
        raise ConfigError(f"{position}: takes <path>{takes} for {form}")
    missing = ""
    try:
        for part in _ranges(position, form):
            for row in read_range(part, shape):
                if row.source == str(position):
                    return row
                if isinstance(row, DeadLetter) and row.source == position.path:
                    missing = missing or row.reason
    except FileNotFoundError:
        raise ConfigError(f"{position}: there is no file {position.path}") from None
    except (OSError, BeamIOError) as error:
        raise ConfigError(f"{position.path}: {error}") from None
    raise ConfigError(f"no row begins at {position}: {missing or 'takes what an id or a dead letter names'}")


def _ranges(position: Position, form: InputFormat) -> Iterator[FileRange]:
    if position.mark == LINE_MARK and not is_compressed(position.path):
        yield FileRange(position.path, form, position.number, position.number + 1)
    else:
        yield from split_file(FileMetadata(position.path, 0), form)
