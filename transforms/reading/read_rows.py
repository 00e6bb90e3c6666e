"""Reading one range of a file: each row a Prompt, or the DeadLetter that says what is wrong with it.

Rows are known by their positions (positions.py): `<path as matched>@<first byte>` of a line of the (uncompressed) file,
`<path>#<number>` of a row of CSV and Parquet, from 1; a file that is read whole, by its path. Lines that are blank are
skipped. An error of the file system is
raised; a file whose content is damaged ends in one dead letter for all that could not be read of it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import msgspec
import pyarrow.parquet as pq

from millrace.model_manager.wire.errors import InvalidRequest, RequestError, counted

from ..elements.completions import DeadLetter, Prompt
from ..elements.prompt_rows import (
    NESTED_PARAMS,
    SAMPLING_NAMES,
    RowShape,
    batch_endpoint,
    check_types,
    given_id,
    parse_row,
    text_prompt,
    too_deep,
)
from ..files.formats import InputFormat, delimiter
from ..files.input_files import is_damage, open_input
from ..files.lines import Line, read_lines
from .file_ranges import FileRange

MAX_ROW_BYTES = 16 * 2**20
LINE_MARK = "@"
"""Stands before the first byte of a line."""
ROW_MARK = "#"
"""Stands before the number of a row."""
_Parse = Callable[[str, RowShape, str], Prompt | DeadLetter]
_SHOWN = 2000
_CHUNK = 1 << 20
_PARQUET_BATCH = 256
_BOM = b"\xef\xbb\xbf"
_CONSTRAINTS = ("constraint", "response_format", NESTED_PARAMS)
"""What has a constraint in it, as an object or as a text that is JSON."""
_TEXT = ("adapter", "cache_salt")
"""Parameters that are text, also where it looks like a number."""


class UnreadableRow(RequestError):
    """A row is not of its file's format."""


class UnreadableFile(RequestError):
    """A file's content is damaged from some point on."""


def read_range(part: FileRange, shape: RowShape, max_row_bytes: int = MAX_ROW_BYTES) -> Iterator[Prompt | DeadLetter]:
    """All rows of the range, in order."""
    readers = {
        "jsonl": _read_lines,
        "text": _read_lines,
        "csv": _read_csv,
        "parquet": _read_parquet,
        "file": _read_whole,
    }
    try:
        with open_input(part.path, part.fingerprint) as stream:
            yield from readers[part.format](stream, part, shape, max_row_bytes)
    except Exception as error:
        if not (is_damage(error) or isinstance(error, csv.Error)):
            raise
        yield unreadable_file(part.path, error)


def unreadable_file(path: str, error: Exception) -> DeadLetter:
    """The letter of a file, or the rest of one."""
    empty = "file size is 0 bytes" in str(error)
    damaged = f"the file is damaged ({type(error).__name__}: {error}); rows from there on are missing"
    reason = "the file is empty, and no Parquet file" if empty else damaged
    return DeadLetter(id=path, error=UnreadableFile.__name__, reason=reason, source=path)


def _read_lines(stream: BinaryIO, part: FileRange, shape: RowShape, limit: int) -> Iterator[Prompt | DeadLetter]:
    parse = _ROW_OF[part.format]
    for line in read_lines(stream, part.start, part.stop, limit=limit):
        data = line.data.removeprefix(_BOM) if line.offset == 0 else line.data
        if data.strip():
            position = f"{part.path}{LINE_MARK}{line.offset}"
            yield _row_or_letter(line._replace(data=data), shape, position, limit, parse)


def _read_whole(stream: BinaryIO, part: FileRange, shape: RowShape, limit: int) -> Iterator[Prompt | DeadLetter]:
    data = b""
    while len(data) <= limit and (chunk := stream.read(limit + 1 - len(data))):  # a decompressor may give less
        data += chunk
    data = data.removeprefix(_BOM)
    if not data.strip():
        yield _letter(UnreadableRow("the file is empty"), part.path, "")
        return
    line = Line(0, data[:limit], too_long=len(data) > limit)
    yield _row_or_letter(line, shape, part.path, limit, _text_row, "file")


def message_row(data: bytes, form: InputFormat, shape: RowShape, position: str, limit: int) -> Prompt | DeadLetter:
    """The row that a message's payload is: of JSON, or a text."""
    if not data.strip():
        return _letter(UnreadableRow("the message is empty"), position, "")
    return _row_or_letter(Line(0, data[:limit], too_long=len(data) > limit), shape, position, limit, _ROW_OF[form])


def _row_or_letter(
    line: Line, shape: RowShape, position: str, limit: int, parse: _Parse, what: str = "row"
) -> Prompt | DeadLetter:
    shown = line.data[:_SHOWN].decode("utf-8", "backslashreplace")
    if line.too_long:
        return _letter(UnreadableRow(f"the {what} is longer than {limit} bytes"), position, shown)
    try:
        text = line.data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _letter(UnreadableRow(f"not UTF-8: {error.reason} at byte {error.start} of the {what}"), position, shown)
    return parse(text, shape, position)


def _text_row(text: str, shape: RowShape, position: str) -> Prompt | DeadLetter:
    try:
        return text_prompt(text, shape, position=position)
    except RequestError as error:
        return _letter(error, position, text)


def _json_row(text: str, shape: RowShape, position: str) -> Prompt | DeadLetter:
    try:
        row = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return _letter(UnreadableRow(f"not JSON: {_without_prefix(error)}"), position, text)
    return _prompt_or_letter(row, shape, position, text)


_ROW_OF: dict[InputFormat, _Parse] = {"jsonl": _json_row, "text": _text_row}
"""What reads one line, or one message."""


def _prompt_or_letter(row: Any, shape: RowShape, position: str, original: str | None = None) -> Prompt | DeadLetter:
    try:
        return parse_row(row, shape, position=position, original=original)
    except RequestError as error:
        shown = (original or "")[:_SHOWN] if too_deep(row) else row
        letter = _letter(error, position, shown, given_id(row, shape))
        return msgspec.structs.replace(letter, endpoint=batch_endpoint(shown, shape))


def _letter(error: RequestError, position: str, row: Any, identity: str = "") -> DeadLetter:
    return DeadLetter(id=identity or position, error=type(error).__name__, reason=str(error), row=row, source=position)


# ── CSV ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_csv(stream: BinaryIO, part: FileRange, shape: RowShape, limit: int) -> Iterator[Prompt | DeadLetter]:
    csv.field_size_limit(max(limit, csv.field_size_limit()))  # the module's own default of 128 KiB is too little
    lines = (line.decode("utf-8", "surrogateescape") for line in _raw_lines(stream, limit))
    rows = csv.reader(lines, delimiter=delimiter(part.path))
    header = next(rows, [])
    for number, fields in enumerate((row for row in rows if row), 1):
        yield _csv_row(header, fields, shape, f"{part.path}{ROW_MARK}{number}")


def _raw_lines(stream: BinaryIO, limit: int) -> Iterator[bytes]:
    """Lines with their ends as they are: in a quoted field they are content."""
    held = stream.read(len(_BOM)).removeprefix(_BOM)
    while chunk := stream.read(_CHUNK):
        *ended, held = (held + chunk).split(b"\n")
        yield from (line + b"\n" for line in ended)
        if len(held) > limit:
            raise csv.Error(f"a line is longer than {limit} bytes")
    if held:
        yield held


def _csv_row(header: list[str], fields: list[str], shape: RowShape, position: str) -> Prompt | DeadLetter:
    try:
        "".join([*header, *fields]).encode("utf-8")
    except UnicodeEncodeError:
        shown = [field.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for field in fields]
        return _letter(UnreadableRow("not UTF-8"), position, shown)
    if len(fields) != len(header):
        reason = f"{counted(len(fields), 'field')} where the header has {len(header)}"
        return _letter(UnreadableRow(reason), position, fields)
    row = dict(zip(header, fields, strict=True))
    try:
        typed = typed_cells(row, shape)
        return _prompt_or_letter(typed, shape, position, msgspec.json.encode(typed).decode())
    except InvalidRequest as error:
        return _letter(error, position, row, given_id(row, shape))


def typed_cells(row: dict[str, str], shape: RowShape) -> dict[str, Any]:
    """Messages are JSON in their cells; sampling parameters too, or else text as it stands; empty is not given."""
    typed: dict[str, Any] = dict(row)
    names = {*SAMPLING_NAMES, NESTED_PARAMS} if shape.row_params else set()
    names |= {"messages"} & {*shape.default_columns} - {shape.prompt_column}
    for name in names & row.keys():
        typed[name] = _json_cell(name, row[name]) if row[name].strip() else None
    return typed


def _json_cell(name: str, cell: str) -> Any:
    if name in _CONSTRAINTS:
        return cell  # a text that is JSON is read where any row's is
    if name == "stop" and not cell.lstrip().startswith("["):
        return cell
    try:
        value = msgspec.json.decode(cell)
    except (msgspec.MsgspecError, RecursionError) as error:
        if name == "messages":
            raise InvalidRequest(f"`{name}` is not JSON: {_without_prefix(error)}") from None
        return cell
    return cell if name in _TEXT and not isinstance(value, str) else value


def _without_prefix(error: Exception) -> str:
    return str(error).removeprefix("JSON is malformed: ")


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_parquet(stream: BinaryIO, part: FileRange, shape: RowShape, limit: int) -> Iterator[Prompt | DeadLetter]:
    file = pq.ParquetFile(stream)
    groups = range(file.metadata.num_row_groups)[part.start : part.stop]
    number = part.first_row + 1
    for batch in file.iter_batches(batch_size=_PARQUET_BATCH, row_groups=list(groups)):
        for row in batch.to_pylist(maps_as_pydicts="lossy"):
            yield _parquet_row(row, shape, f"{part.path}{ROW_MARK}{number}", limit)
            number += 1


def _parquet_row(row: Mapping[str, Any], shape: RowShape, position: str, limit: int) -> Prompt | DeadLetter:
    """Values that JSON does not have become what msgspec makes of them: ISO dates, base64 bytes, decimals as text."""
    encoded = msgspec.json.encode(_without_filling(row) if shape.row_params else row, enc_hook=str)
    if len(encoded) > limit:
        shown = encoded[:_SHOWN].decode("utf-8", "replace")
        return _letter(UnreadableRow(f"the row is longer than {limit} bytes"), position, shown)
    plain = msgspec.json.decode(encoded)
    try:
        check_types(row, shape)
    except InvalidRequest as error:
        return _letter(error, position, plain, given_id(plain, shape))
    return _prompt_or_letter(plain, shape, position, encoded.decode())


def _without_filling(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row; its constraints are without the nulls that Arrow fills a struct with where others have more."""
    given = {name: _given(value) for name, value in row.items() if name in _CONSTRAINTS}
    body = row.get("body")
    return {**row, **given, **({"body": _without_filling(body)} if isinstance(body, Mapping) else {})}


def _given(value: Any) -> Any:
    """A null in a list was given; in a struct it cannot be told from what is missing, and is dropped."""
    if isinstance(value, Mapping):
        return {name: _given(each) for name, each in value.items() if each is not None}
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return [_given(each) for each in value] if isinstance(value, list) else value
