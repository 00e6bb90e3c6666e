"""CSV → prompts and dead letters: UTF-8, lines that end in LF or CR LF, a header whose names differ.

A row that cannot be read is its own dead letter. What a whole file cannot be is an UnreadableFile.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from millrace.model_manager.wire.errors import InvalidRequest, counted

from ..elements.completions import DeadLetter, Prompt
from ..elements.prompt_rows import CONSTRAINTS, NESTED_PARAMS, SAMPLING_NAMES, RowShape, given_id
from ..files.formats import delimiter
from .file_ranges import FileRange
from .row_letters import (
    BOM,
    SHOWN,
    UnreadableFile,
    UnreadableRow,
    check_column_names,
    letter,
    prompt_or_letter,
    without_prefix,
)
from .row_places import ROW_MARK

_CHUNK = 1 << 20
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""How a file in UTF-16, or UTF-32, begins."""
_TEXT = ("adapter", "cache_salt")
"""Parameters that are text, also where it looks like a number."""


def read_csv(stream: BinaryIO, part: FileRange, shape: RowShape, limit: int) -> Iterator[Prompt | DeadLetter]:
    """All rows of the file, blank lines aside. Raises UnreadableFile for a file, or the rest of one, that is no CSV."""
    csv.field_size_limit(max(limit, csv.field_size_limit()))  # the module's own default of 128 KiB is too little
    records = _Records(stream, delimiter(part.path), limit)
    header = _header(records)
    for number, fields in enumerate((fields for fields in records if fields), 1):
        position = f"{part.path}{ROW_MARK}{number}"
        if isinstance(fields, UnreadableRow):
            yield letter(fields, position, records.shown)
        elif len(fields) != len(header):
            yield letter(UnreadableRow(_misfit(len(fields), len(header), records)), position, _printable(fields))
        else:
            yield _csv_row(header, fields, shape, position)


def _header(records: _Records) -> list[str]:
    """The names of the columns; of several without a name each is called by its number, as in `column_3`."""
    found = next(records, [])
    if isinstance(found, UnreadableRow):
        raise UnreadableFile(f"the header cannot be read: {found}; so no row can be read")
    unnamed = found.count("") > 1
    names = [name or (f"column_{number}" if unnamed else name) for number, name in enumerate(found, 1)]
    check_column_names(names)
    return names


def _misfit(fields: int, columns: int, records: _Records) -> str:
    first, last = records.lines
    quoted = f" (it goes from line {first} to line {last}: does a quote not close?)" if first < last else ""
    return f"{counted(fields, 'field')} where the header has {columns}{quoted}"


def _printable(fields: list[str]) -> list[str]:
    return [field.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for field in fields]


class _Records:
    """The records of a CSV file; an UnreadableRow in the place of one that cannot be read."""

    def __init__(self, stream: BinaryIO, delimiter: str, limit: int) -> None:
        self.lines = (1, 0)
        """First and last line of the latest record, from 1."""
        self.shown = ""
        """Its beginning, as it stands in the file."""
        self._limit = limit
        self._opened = 0
        """Line of the quote that is open at the record's end; 0 is none."""
        self._ended = False
        self._reader = csv.reader(self._taken(stream), delimiter=delimiter)

    def __iter__(self) -> Iterator[list[str] | UnreadableRow]:
        return self

    def __next__(self) -> list[str] | UnreadableRow:
        self.lines, self.shown, self._opened = (self.lines[1] + 1, self.lines[1]), "", 0
        try:
            fields = next(self._reader)
        except csv.Error as error:
            return UnreadableRow(self._fault(str(error)))
        if self._ended:  # the reader wanted another line for this record
            return UnreadableRow(f"a quote opens on line {self._opened or self.lines[0]} and does not close")
        return fields

    def _taken(self, stream: BinaryIO) -> Iterator[str]:
        """The lines as the reader takes them, noted."""
        for line in _raw_lines(stream, self._limit):
            first, last = self.lines
            self.lines = (first, last + 1)
            self.shown += line[: max(SHOWN - len(self.shown), 0)].decode("utf-8", "backslashreplace")
            self._opened = _open_quote(line, self._opened, last + 1)
            yield line.decode("utf-8", "surrogateescape")
        self._ended = True

    def _fault(self, said: str) -> str:
        if "new-line character" in said:
            return f"a carriage return (\\r) stands alone on line {self.lines[1]}: lines end in \\n or \\r\\n"
        quote = f": a quote opens on line {self._opened}" if self._opened else ""
        if "larger than field limit" in said:
            return f"a field is longer than {csv.field_size_limit()} bytes{quote}"
        return f"{said}{quote}"


def _open_quote(line: bytes, opened: int, number: int) -> int:
    """The line of the quote that is open behind a line, 0 for none; `opened`: the one before it."""
    quotes = line.replace(b'""', b"").count(b'"')  # a quote that is doubled opens and closes nothing
    is_open = bool(opened) != bool(quotes % 2)
    return 0 if not is_open else opened if opened and not quotes else number


def _raw_lines(stream: BinaryIO, limit: int) -> Iterator[bytes]:
    """Lines with their ends as they are: in a quoted field they are content."""
    held = stream.read(len(BOM)).removeprefix(BOM)
    if held.startswith(_UTF16) or b"\0" in held:
        told = "the file is in UTF-16 or UTF-32, and CSV is read as UTF-8, so no row can be read"
        raise UnreadableFile(f"{told}: convert it")
    while chunk := stream.read(_CHUNK):
        *ended, held = (held + chunk).split(b"\n")
        yield from (line + b"\n" for line in ended)
        if len(held) > limit:
            alone = " and has carriage returns (\\r) in it; lines end in \\n or \\r\\n" if b"\r" in held else ""
            raise UnreadableFile(f"a line is longer than {limit} bytes{alone}; rows from there on are missing")
    if held:
        yield held


def _csv_row(header: list[str], fields: list[str], shape: RowShape, position: str) -> Prompt | DeadLetter:
    try:
        "".join([*header, *fields]).encode("utf-8")
    except UnicodeEncodeError:
        return letter(UnreadableRow("not UTF-8"), position, _printable(fields))
    row = dict(zip(header, fields, strict=True))
    try:
        typed = typed_cells(row, shape)
        return prompt_or_letter(typed, shape, position, msgspec.json.encode(typed).decode())
    except InvalidRequest as error:
        return letter(error, position, row, given_id(row, shape))


def typed_cells(row: dict[str, str], shape: RowShape) -> dict[str, Any]:
    """Messages are JSON in their cells; sampling parameters too, or else text as it stands; empty is not given."""
    typed: dict[str, Any] = dict(row)
    names = {*SAMPLING_NAMES, NESTED_PARAMS} if shape.row_params else set()
    names |= {"messages"} & {*shape.default_columns} - {shape.prompt_column}
    for name in names & row.keys():
        typed[name] = _json_cell(name, row[name]) if row[name].strip() else None
    return typed


def _json_cell(name: str, cell: str) -> Any:
    if name in CONSTRAINTS:
        return cell  # a text that is JSON is read where any row's is
    if name == "stop" and not cell.lstrip().startswith("["):
        return cell
    try:
        value = msgspec.json.decode(cell)
    except (msgspec.MsgspecError, RecursionError) as error:
        if name == "messages":
            raise InvalidRequest(f"`{name}` is not JSON: {without_prefix(error)}") from None
        return cell
    return cell if name in _TEXT and not isinstance(value, str) else value
