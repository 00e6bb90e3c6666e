"""Whether the column that a job reads is in its tables, known before it starts where a local file's head says it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import pyarrow.parquet as pq

from millrace.model_manager.wire.conversion import nearest
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.addresses import Address, Files
from millrace.transforms.files.file_systems import match
from millrace.transforms.files.formats import delimiter, input_format
from millrace.transforms.files.input_files import is_damage, open_input

_SHOWN = 10
"""Columns that are told."""


def check_column(flag: str, name: str, inputs: Sequence[Address], named_format: str | None) -> None:
    """Raises ConfigError where the first CSV or Parquet file has no column of that name; what is not here passes."""
    paths = [
        str(file.path) for each in inputs if isinstance(each, Files) and each.is_local for file in match(each.path)
    ]
    formats = ((path, input_format(path, named_format)) for path in paths)
    path, form = next(((path, form) for path, form in formats if form in ("csv", "parquet")), ("", ""))
    columns = _columns(path, form) if path else []
    if not columns or name in columns:
        return
    near = nearest(name, columns)
    hint = f": did you mean {near}?" if near else ""
    more = ", …" if len(columns) > _SHOWN else ""
    raise ConfigError(f"{flag} {name}: not in {path}, whose columns are {', '.join(columns[:_SHOWN])}{more}{hint}")


def _columns(path: str, form: str) -> list[str]:
    """The column names in a file's head; none for a damaged file, which its reader tells."""
    try:
        with open_input(path) as stream:
            if form == "parquet":
                return list(pq.ParquetFile(stream).schema_arrow.names)
            text = io.TextIOWrapper(stream, "utf-8-sig", errors="backslashreplace", newline="")
            return next(csv.reader(text, delimiter=delimiter(path)), [])
    except Exception as error:
        if isinstance(error, csv.Error) or is_damage(error):
            return []
        raise
