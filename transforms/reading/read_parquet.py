"""Parquet → prompts and dead letters: row groups one by one, so that a damaged one costs its own rows alone."""

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
from .arrow_plain import Unconvertible, encoded, plain_rows
from .file_ranges import FileRange
from .row_letters import SHOWN, UnreadableRow, check_column_names, file_letter, letter, prompt_or_letter
from .row_places import ROW_MARK

_BATCH = 16
"""Rows that are decoded at a time: few, because one value may have megabytes."""
_CONVERTED_BYTES = 2**20
"""Rows of a larger batch are converted one by one."""


def read_parquet(stream: BinaryIO, part: FileRange, shape: RowShape, limit: int) -> Iterator[Prompt | DeadLetter]:
    """All rows of the range's row groups. Raises UnreadableFile where two columns have one name."""
    file = pq.ParquetFile(stream)
    check_column_names(file.schema_arrow.names)
    first = part.first_row + 1
    for group in range(file.metadata.num_row_groups)[part.start : part.stop]:
        last = first + file.metadata.row_group(group).num_rows - 1
        yield from _read_group(file, group, range(first, last + 1), part.path, shape, limit)
        first = last + 1


def _read_group(
    file: pq.ParquetFile, group: int, numbers: range, path: str, shape: RowShape, limit: int
) -> Iterator[Prompt | DeadLetter]:
    """The rows of one row group, which have these numbers in the file."""
    number = numbers.start
    try:
        for batch in file.iter_batches(batch_size=_BATCH, row_groups=[group]):
            for row in _rows(batch):
                yield _row(row, shape, f"{path}{ROW_MARK}{number}", limit)
                number += 1
    except Exception as error:
        if not is_damage(error):
            raise
        groups = f"row group {group + 1} of {file.metadata.num_row_groups}"
        missing = f"rows {number} to {numbers.stop - 1} are missing, the rows of other row groups are read"
        yield file_letter(path, f"{groups}: {_fault(error, file.schema_arrow)}; {missing}")


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    if batch.get_total_buffer_size() <= _CONVERTED_BYTES:
        yield from plain_rows(batch)
        return
    for row in range(batch.num_rows):
        yield from plain_rows(batch.slice(row, 1))


def _fault(error: Exception, schema: pa.Schema) -> str:
    said = str(error)
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
