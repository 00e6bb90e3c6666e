"""Where a row stands, which is its id where it has no other: a name for it, and finding it again by that name.

`prompts.jsonl@1234` is the line that begins at byte 1234 of the (uncompressed) file, from 0: files of lines are read in
ranges from anywhere, where nobody knows how many lines are before. `table.csv#17` is the 17th row of CSV or Parquet, a
header not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.filesystems import BeamIOError

from millrace.model_manager.wire.errors import ConfigError

from ..elements.completions import DeadLetter, Prompt
from ..elements.prompt_rows import RowShape
from ..files.formats import InputFormat, is_compressed
from .file_ranges import FileRange, split_file
from .read_rows import read_range
from .row_places import LINE_MARK, Position


def find_row(position: Position, shape: RowShape, named_format: str | None = None) -> Prompt | DeadLetter:
    """The row, as it is read there; ConfigError where none is."""
    form = position.format(named_format)
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
