"""Reading one range of a file: each row a Prompt, or the DeadLetter that says what is wrong with it.

Rows are known by their positions (positions.py): `<path as matched>@<first byte>` of a line of the (uncompressed) file,
`<path>#<number>` of a row of CSV and Parquet, from 1; a file that is read whole, by its path. Lines that are blank are
skipped. An error of the file system is raised; a file whose content is damaged ends in one dead letter for all that
could not be read of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from millrace.model_manager.wire.errors import RequestError

from ..elements.completions import DeadLetter, Prompt
from ..elements.prompt_rows import RowShape, text_prompt
from ..files.formats import InputFormat
from ..files.input_files import is_damage, open_input
from ..files.lines import Line, read_lines
from .file_ranges import FileRange
from .read_csv import read_csv
from .read_parquet import read_parquet
from .row_letters import (
    BOM,
    SHOWN,
    UnreadableFile,
    UnreadableRow,
    file_letter,
    letter,
    prompt_or_letter,
    without_prefix,
)
from .row_places import LINE_MARK

MAX_ROW_BYTES = 16 * 2**20
_Parse = Callable[[str, RowShape, str], Prompt | DeadLetter]
_SURROGATE = re.compile("[\ud800-\udfff]")


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
    parse = _ROW_OF[part.format]
    for line in read_lines(stream, part.start, part.stop, limit=limit):
        if line.offset == 0:
            line = line._replace(data=line.data.removeprefix(BOM))
        if line.data.strip():
            yield _row_or_letter(line, shape, f"{part.path}{LINE_MARK}{line.offset}", limit, parse)


def _read_whole(stream: BinaryIO, part: FileRange, shape: RowShape, limit: int) -> Iterator[Prompt | DeadLetter]:
    data = b""
    while len(data) <= limit and (chunk := stream.read(limit + 1 - len(data))):  # a decompressor may give less
        data += chunk
    data = data.removeprefix(BOM)
    if not data.strip():
        yield letter(UnreadableRow("the file is empty"), part.path, "")
        return
    line = Line(0, data[:limit], too_long=len(data) > limit)
    yield _row_or_letter(line, shape, part.path, limit, _text_row, "file")


def message_row(data: bytes, form: InputFormat, shape: RowShape, position: str, limit: int) -> Prompt | DeadLetter:
    """The row that a message's payload is: of JSON, or a text."""
    if not data.strip():
        return letter(UnreadableRow("the message is empty"), position, "")
    return _row_or_letter(Line(0, data[:limit], too_long=len(data) > limit), shape, position, limit, _ROW_OF[form])


def _row_or_letter(
    line: Line, shape: RowShape, position: str, limit: int, parse: _Parse, what: str = "row"
) -> Prompt | DeadLetter:
    shown = line.data[:SHOWN].decode("utf-8", "backslashreplace")
    if line.too_long:
        return letter(UnreadableRow(f"the {what} is longer than {limit} bytes"), position, shown)
    try:
        text = line.data.decode("utf-8")
    except UnicodeDecodeError as error:
        return letter(UnreadableRow(f"not UTF-8: {error.reason} at byte {error.start} of the {what}"), position, shown)
    return parse(text, shape, position)


def _text_row(text: str, shape: RowShape, position: str) -> Prompt | DeadLetter:
    try:
        return text_prompt(text, shape, position=position)
    except RequestError as error:
        return letter(error, position, text)


def _json_row(text: str, shape: RowShape, position: str) -> Prompt | DeadLetter:
    try:
        row = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return letter(UnreadableRow(f"not JSON: {_fault(text) or without_prefix(error)}"), position, text)
    return prompt_or_letter(row, shape, position, text)


def _fault(text: str) -> str:
    """What is wrong with a text that has half a character in it, which the reader takes for its end; else empty."""
    try:
        found = _SURROGATE.search(json.dumps(json.loads(text), ensure_ascii=False))
    except (ValueError, RecursionError):
        return ""
    return f"\\u{ord(found[0]):x} is half of a character, without the other half (a lone surrogate)" if found else ""


_ROW_OF: dict[InputFormat, _Parse] = {"jsonl": _json_row, "text": _text_row}
"""What reads one line, or one message."""
