"""Reading one range of a file: each row a Prompt, or the DeadLetter that says what is wrong with it.

Rows are known by their positions (positions.py): `<path as matched>@<first byte>` of a line of the (uncompressed) file,
`<path>#<number>` of a row of CSV and Parquet, from 1; a file that is read whole, by its path. Lines that are blank are
skipped. An error of the file system is raised; a file whose content is damaged ends in one dead letter for all that
could not be read of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from ..elements.completions import DeadLetter, Prompt
from ..elements.prompt_rows import RowShape
from ..files.input_files import is_damage, open_input
from ..files.lines import Line, read_lines
from .file_ranges import FileRange
from .read_csv import read_csv
from .read_parquet import read_parquet
from .row_letters import BOM, ROW_OF, UnreadableFile, UnreadableRow, file_letter, letter, row_or_letter, text_row
from .row_places import LINE_MARK

MAX_ROW_BYTES = 16 * 2**20


def read_range(part: FileRange, shape: RowShape, max_row_bytes: int = MAX_ROW_BYTES) -> Iterator[Prompt | DeadLetter]:
    """All rows of the range, in order."""
    readers = {
        "jsonl": _read_lines,
        "text": _read_lines,
        "csv": read_csv,
        "parquet": read_parquet,
        "file": _read_whole,
    }
    try:
        with open_input(part.path, part.fingerprint) as stream:
            yield from readers[part.format](stream, part, shape, max_row_bytes)
    except UnreadableFile as error:
        yield file_letter(part.path, str(error))
    except Exception as error:
        if not is_damage(error):
            raise
        yield file_letter(part.path, _damage(error))


def _damage(error: Exception) -> str:
    if "file size is 0 bytes" in str(error):
        return "the file is empty, and no Parquet file"
    return f"the file is damaged ({type(error).__name__}: {error}); rows from there on are missing"


def _read_lines(stream: BinaryIO, part: FileRange, shape: RowShape, limit: int) -> Iterator[Prompt | DeadLetter]:
    parse = ROW_OF[part.format]
    for line in read_lines(stream, part.start, part.stop, limit=limit):
        if line.offset == 0:
            line = line._replace(data=line.data.removeprefix(BOM))
        if line.data.strip():
            yield row_or_letter(line, shape, f"{part.path}{LINE_MARK}{line.offset}", limit, parse)


def _read_whole(stream: BinaryIO, part: FileRange, shape: RowShape, limit: int) -> Iterator[Prompt | DeadLetter]:
    data = b""
    while len(data) <= limit and (chunk := stream.read(limit + 1 - len(data))):  # a decompressor may give less
        data += chunk
    data = data.removeprefix(BOM)
    if not data.strip():
        yield letter(UnreadableRow("the file is empty"), part.path, "")
        return
    line = Line(0, data[:limit], too_long=len(data) > limit)
    yield row_or_letter(line, shape, part.path, limit, text_row, "file")
