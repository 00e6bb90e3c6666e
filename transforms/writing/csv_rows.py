"""Rows of results as CSV: a header, text as it is, every other value as JSON, nothing for a value that is missing.

Lines end as RFC 4180 has it, so that a text may have any ends of lines in it.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import msgspec

_MOST_IN_A_CELL = 1 << 30


def write_csv(lines: Iterable[bytes], stream: BinaryIO, columns: Sequence[str]) -> int:
    """JSON lines → CSV of these columns; returns how many rows."""
    table = csv.DictWriter(codecs.getwriter("utf-8")(stream), columns)
    table.writeheader()
    count = 0
    for line in lines:
        row = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        table.writerow({name: _cell(bytes(value)) for name, value in row.items()})
        count += 1
    return count


def _cell(value: bytes) -> str:
    """Numbers keep all their digits."""
    if value == b"null":
        return ""
    return msgspec.json.decode(value, type=str) if value.startswith(b'"') else value.decode()


def read_cells(stream: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """The rows, by their columns, as they stand in the cells."""
    csv.field_size_limit(max(_MOST_IN_A_CELL, csv.field_size_limit()))
    yield from csv.DictReader(line.decode("utf-8") for line in stream)
