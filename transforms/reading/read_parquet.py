"""Parquet → prompts and dead letters: row groups one by one, so that a damaged one costs its own rows alone.

Memory is bounded by pages, not by row groups: a file on a disk is read in pieces, and a row group whose pages are too
large is refused before they are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.model_manager.wire.errors import InvalidRequest

from ..elements.completions import DeadLetter, Prompt
from ..elements.prompt_rows import CONSTRAINTS, RowShape, check_row_types, given_id
from ..files.input_files import is_damage
from ..files.object_stores import is_local
from .arrow_plain import Unconvertible, encoded, plain_rows
from .file_ranges import FileRange
from .parquet_pages import largest_pages
from .row_letters import SHOWN, UnreadableFile, UnreadableRow, check_column_names, file_letter, letter, prompt_or_letter
from .row_places import ROW_MARK

_BATCH = 16
"""Rows that are decoded at a time, at most: few, because one value may have megabytes."""
_BATCH_BYTES = 2**20
"""Bytes that a batch should have, at most. It has fewer than _BATCH rows, but at least one, if rows of this row group
are so large on average. Averages can be wrong: a batch with more bytes is converted to Python objects row by row.
"""
_PAGES = 32
"""Pages that are decoded at a time, one of each column, may count as many times `max_row_bytes` together, …"""
_PAGES_BYTES = 512 * 2**20
"""… and so much in any case: pages of 1 MiB are common, and so are tables of hundreds of columns."""
_PIECE = 2**20
"""Bytes of a column that are read from a disk at a time."""
_STORE_PIECE = 16 * 2**20
"""The same of an object store, whose readers fetch as many."""


def read_parquet(stream: BinaryIO, part: FileRange, shape: RowShape, limit: int) -> Iterator[Prompt | DeadLetter]:
    """All rows of the range's row groups. Raises UnreadableFile where two columns have one name."""
    footer = pq.ParquetFile(stream)
    check_column_names(footer.schema_arrow.names)
    first = part.first_row + 1
    for group in range(footer.metadata.num_row_groups)[part.start : part.stop]:
        last = first + footer.metadata.row_group(group).num_rows - 1
        yield from _read_group(stream, footer, group, range(first, last + 1), part.path, shape, limit)
        first = last + 1


def _read_group(
    stream: BinaryIO, footer: pq.ParquetFile, group: int, numbers: range, path: str, shape: RowShape, limit: int
) -> Iterator[Prompt | DeadLetter]:
    """The rows of one row group, which have these numbers in the file."""
    number = numbers.start
    try:
        _check_pages(stream, footer.metadata, group, limit)
        for batch in _batches(stream, footer.metadata, group, path, limit):
            for row in _rows(batch):
                yield _row(row, shape, f"{path}{ROW_MARK}{number}", limit)
                number += 1
    except Exception as error:
        if not (isinstance(error, UnreadableFile) or is_damage(error)):
            raise
        groups = f"row group {group + 1} of {footer.metadata.num_row_groups}"
        missing = f"rows {number} to {numbers.stop - 1} are missing, the rows of other row groups are read"
        yield file_letter(path, f"{groups}: {_fault(error, footer.schema_arrow)}; {missing}")


def _check_pages(stream: BinaryIO, metadata: pq.FileMetaData, group: int, limit: int) -> None:
    """Raises UnreadableFile where decoding takes more memory than rows of `limit` bytes may take."""
    most = _pages_bytes(limit)
    held, largest = largest_pages(stream, metadata, group, most)
    if held <= most:
        return
    rows = metadata.row_group(group)
    values = max(limit * rows.num_rows // _row_group_bytes(rows), 1)
    raise UnreadableFile(
        f"the largest pages of its columns count {held:,} towards the limit (column `{largest.column}`:"
        f" {largest.size:,} bytes), which is {most:,} ({_PAGES} x max_row_bytes={limit}, at least"
        f" {_PAGES_BYTES // 2**20} MiB): write the file with smaller pages"
        f" (pyarrow: write_batch_size={min(values, 1024)}; DuckDB: a smaller ROW_GROUP_SIZE) or without the column, or"
        " raise max_row_bytes of ReadPrompts"
    )


def _batches(
    stream: BinaryIO, metadata: pq.FileMetaData, group: int, path: str, limit: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, a few at a time. An object store's columns are fetched together if that is not much."""
    rows = metadata.row_group(group)
    together = not is_local(path) and _row_group_bytes(rows) <= _pages_bytes(limit)
    of_store = max(min(_STORE_PIECE, _pages_bytes(limit) // max(rows.num_columns, 1)), _PIECE)
    piece = _PIECE if is_local(path) else of_store
    file = pq.ParquetFile(stream, metadata=metadata, pre_buffer=together, buffer_size=0 if together else piece)
    of_size = max(_BATCH_BYTES * rows.num_rows // _row_group_bytes(rows), 1)
    yield from file.iter_batches(min(of_size, _BATCH), row_groups=[group], use_threads=False)


def _pages_bytes(limit: int) -> int:
    return max(_PAGES * limit, _PAGES_BYTES)


def _row_group_bytes(group: pq.RowGroupMetaData) -> int:
    return max(int(group.total_byte_size), 1)


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    if batch.get_total_buffer_size() <= _BATCH_BYTES:
        yield from plain_rows(batch)
        return
    for row in range(batch.num_rows):
        yield from plain_rows(batch.slice(row, 1))


def _fault(error: Exception, schema: pa.Schema) -> str:
    said = str(error)
    if isinstance(error, UnreadableFile):
        return said
    if "Expected all lists to be of size" in said:
        names = ", ".join(f"`{field.name}`" for field in schema if "fixed_size_list" in str(field.type))
        return f"a null in a list of fixed size ({names}) is not supported: write the column as a plain list"
    if isinstance(error, NotImplementedError):
        return f"its types are not supported ({said})"
    return f"it is damaged ({type(error).__name__}: {said})"


def _row(row: dict[str, Any], shape: RowShape, position: str, limit: int) -> Prompt | DeadLetter:
    odd = next((f"`{name}`: {value}" for name, value in row.items() if isinstance(value, Unconvertible)), None)
    if odd is not None:
        shown = {name: None if isinstance(value, Unconvertible) else value for name, value in row.items()}
        plain = msgspec.json.decode(encoded(shown))
        return letter(UnreadableRow(odd), position, plain, given_id(plain, shape))
    data = encoded(_without_filling(row) if shape.row_params else row)
    if len(data) > limit:
        shown_text = data[:SHOWN].decode("utf-8", "replace")
        return letter(UnreadableRow(f"the row is longer than {limit} bytes"), position, shown_text)
    plain = msgspec.json.decode(data)
    try:
        check_row_types(row, shape)
    except InvalidRequest as error:
        return letter(error, position, plain, given_id(plain, shape))
    return prompt_or_letter(plain, shape, position, data.decode())


def _without_filling(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row; its constraints are without the nulls that Arrow fills a struct with where others have more."""
    given = {name: _given(value) for name, value in row.items() if name in CONSTRAINTS}
    body = row.get("body")
    return {**row, **given, **({"body": _without_filling(body)} if isinstance(body, Mapping) else {})}


def _given(value: Any) -> Any:
    """A null in a list was given; in a struct it cannot be told from what is missing, and is dropped."""
    if isinstance(value, Mapping):
        return {name: _given(each) for name, each in value.items() if each is not None}
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return [_given(each) for each in value] if isinstance(value, list) else value
