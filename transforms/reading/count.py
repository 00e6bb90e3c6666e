"""Counts the rows to read, roughly and fast: for progress, not for decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from apache_beam.io.filesystem import FileMetadata

from ..files.formats import input_format
from ..files.input_files import decompressed, is_damage
from ..files.object_reads import open_file
from .file_ranges import match_files

BUDGET = 256 * 2**20
"""Bytes that are read to count rows."""
_CHUNK = 1 << 20


class RowCount(NamedTuple):
    """A number of rows; `exact` or estimated from the bytes read so far."""

    rows: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.rows:,}" if self.exact else f"≈ {self.rows:,}"


def count_rows(
    patterns: Sequence[str], named_format: str | None = None, budget: int = BUDGET, limit: int | None = None
) -> RowCount:
    """Rows of all files, at most `limit`. About `budget` bytes (decompressed) are read; what is beyond is taken to be
    alike, by the files' sizes.
    """
    rows, spent, bytes_read, bytes_left, exact = 0, 0, 0, 0, True
    for file in match_files(list(patterns)):
        most = None if limit is None else limit - rows
        counted = _count(file, input_format(file.path, named_format), max(budget - spent, 0), most)
        rows += counted.rows
        spent += counted.spent
        bytes_read += counted.bytes_read
        bytes_left += counted.bytes_left
        exact = exact and counted.exact
        if limit is not None and rows >= limit:
            return RowCount(limit, exact=True)
    if bytes_left:
        estimate = round(rows * (1 + bytes_left / max(bytes_read, 1)))
        return RowCount(estimate if limit is None else min(estimate, limit), exact=False)
    return RowCount(rows, exact)


class _Counted(NamedTuple):
    rows: int
    spent: int = 0
    """Bytes of the budget."""
    bytes_read: int = 0
    """Bytes of the file as it is stored."""
    bytes_left: int = 0
    exact: bool = True


def _count(file: FileMetadata, form: str, budget: int, most: int | None) -> _Counted:
    if form == "file":
        return _Counted(1)
    if form != "parquet" and not budget:
        return _Counted(0, bytes_left=file.size_in_bytes, exact=not file.size_in_bytes)
    try:
        with open_file(file.path) as raw, decompressed(raw, file.path) as stream:
            if form == "parquet":
                return _Counted(pq.ParquetFile(stream).metadata.num_rows)
            counted = _count_lines(stream, form, budget, most)
            stored = min(raw.tell(), file.size_in_bytes)
            return counted._replace(bytes_read=stored, bytes_left=0 if counted.exact else file.size_in_bytes - stored)
    except Exception as error:
        if is_damage(error):
            return _Counted(0, exact=False)
        raise


def _count_lines(stream: BinaryIO, form: str, budget: int, most: int | None) -> _Counted:
    """Stops soon after `most` rows."""
    rows, read, quotes, last, ended = 0, 0, 0, b"\n", False
    while read < budget and not ended and (most is None or rows <= most):
        chunk = stream.read(_CHUNK)
        rows += _csv_ends(chunk, quotes) if form == "csv" else _line_ends(chunk, last)
        quotes += chunk.count(b'"')
        read += len(chunk)
        last, ended = chunk[-1:] or last, not chunk
    ended = ended or not stream.read(1)
    unended = last != b"\n"
    return _Counted(max(rows + unended - (form == "csv"), 0), read, exact=ended)


def _line_ends(chunk: bytes, last: bytes) -> int:
    """Ends of lines that are not empty. Lines of spaces alone are few enough to count."""
    ends = np.frombuffer((last + chunk).replace(b"\r", b""), dtype=np.uint8) == ord("\n")
    return int((ends[1:] & ~ends[:-1]).sum())


def _csv_ends(chunk: bytes, quotes: int) -> int:
    """Line ends outside of quotes, with so many quotes before."""
    ends = 0
    for number, piece in enumerate(chunk.split(b'"'), quotes):
        if number % 2 == 0:
            ends += piece.count(b"\n")
    return ends
