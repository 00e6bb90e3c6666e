"""Files of results, read by need: all rows in passing, or some from a number on, with memory that does not grow.

Of each file a mark is kept for every 256 rows, or the row groups of Parquet. A pass over a file of lines finds its
marks; one thread may make it while others read the first rows. A row that cannot be read is an object that says why,
under UNREADABLE.
"""

from __future__ import annotations

import contextlib
import csv
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any, BinaryIO, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.model_manager.wire.decoding import json_decoder
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.files.lines import Line, read_lines
from millrace.transforms.files.object_reads import open_file
from millrace.transforms.reading.arrow_plain import plain_rows

from .facts import COLUMNS, ENDINGS, UNREADABLE, Light

Row = dict[str, Any]
_EVERY = 256
_MOST_BYTES = 64 * 2**20
"""Most bytes of a row."""
_MOST_SHOWN = 400
"""Bytes that are shown of a line that is no row."""
_BATCH = 128
_NESTED = (
    *("probabilities", "labels", "scores", "embedding", "usage", "timings", "confidences", "spans", "choices", "error"),
    *("columns", "logprobs", "prompt_logprobs", "confidence"),
)
"""Columns of CSV that hold JSON."""


class RowFile(Protocol):
    """The rows of one file, numbered from 0."""

    path: str

    @property
    def known(self) -> int | None:
        """How many rows it has; None until a file of lines is read."""

    def count(self) -> int:
        """How many rows it has; the first time, a file of lines is read for it."""

    def scan(self, *, spent: bool = True) -> Iterator[Row]:
        """All rows, with the columns of facts.py alone. `spent`: with what they took, where it costs to read that."""

    def read(self, start: int, count: int) -> list[Row]:
        """Whole rows."""

    def at(self, numbers: Sequence[int]) -> list[Row]:
        """The whole rows of these numbers, which are in order."""


def row_file(path: str) -> RowFile:
    """A reader for the file, by its extension. Raises ConfigError for an extension that no output has."""
    for extension, kind in ((".parquet", ParquetRows), (".jsonl", LineRows), (".csv", CsvRows)):
        if path.endswith(extension):
            return kind(path)
    raise ConfigError(f"{path}: takes a file of results, whose name ends in .jsonl, .parquet or .csv")


def first_rows(path: str, count: int) -> list[Row]:
    """The first rows of a file."""
    file = row_file(path)
    return file.read(0, count)


class LineRows:
    """JSON lines."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.known: int | None = None
        self._marks = array("Q")
        self._counting = threading.Lock()

    def count(self) -> int:
        """Reads the file, the first time."""
        with self._counting:
            if self.known is None:
                for _ in self._lines():
                    pass
        assert self.known is not None
        return self.known

    def scan(self, *, spent: bool = True) -> Iterator[Row]:  # noqa: ARG002
        """Every line."""
        for line in self._lines():
            yield _decoded(line, Light)

    def read(self, start: int, count: int) -> list[Row]:
        """Rows `start` to `start + count`, read from the nearest mark on."""
        mark = start // _EVERY
        if mark:
            self.count()
        if mark and mark >= len(self._marks):
            return []
        first = self._marks[mark] if mark else 0
        with open_file(self.path) as stream:
            lines = _filled(read_lines(stream, first, limit=_MOST_BYTES))
            return [_decoded(line, dict) for line in islice(lines, start % _EVERY, start % _EVERY + count)]

    def at(self, numbers: Sequence[int]) -> list[Row]:
        """Each from its nearest mark on."""
        return [row for number in numbers for row in self.read(number, 1)]

    def _lines(self) -> Iterator[Line]:
        """All of them; takes the marks on the way."""
        marks, number = array("Q"), 0
        with open_file(self.path) as stream:
            for number, line in enumerate(_filled(read_lines(stream, limit=_MOST_BYTES)), 1):
                if number % _EVERY == 1:
                    marks.append(line.offset)
                yield line
        self._marks, self.known = marks, number


def _filled(lines: Iterator[Line]) -> Iterator[Line]:
    return (line for line in lines if line.data.strip())


def _decoded(line: Line, shape: Any) -> Row:
    try:
        if line.too_long:
            raise ValueError(f"longer than {_MOST_BYTES} bytes")
        found = json_decoder(shape).decode(line.data)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        return {UNREADABLE: str(error), "text": line.data[:_MOST_SHOWN].decode("utf-8", "backslashreplace")}
    return found if isinstance(found, dict) else msgspec.structs.asdict(found)


class ParquetRows:
    """Parquet: row groups by need, in small batches."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open_file(path) as stream, _explained(path):
            metadata = pq.ParquetFile(stream).metadata
            self._ends = array("Q")
            rows = 0
            for group in range(metadata.num_row_groups):
                rows += metadata.row_group(group).num_rows
                self._ends.append(rows)
            self.known = rows

    def count(self) -> int:
        """Number of rows, known from the file's end."""
        return self.known

    def scan(self, *, spent: bool = True) -> Iterator[Row]:
        """Every batch, without the columns of texts."""
        with open_file(self.path) as stream:
            file = pq.ParquetFile(stream)
            there = file.schema_arrow.names
            wanted = COLUMNS if spent or "finish_reason" not in there else ENDINGS
            names = [name for name in there if name in wanted]
            if not names:
                yield from ({} for _ in range(self.count()))
                return
            for batch in file.iter_batches(batch_size=4096, columns=names):
                yield from plain_rows(batch)

    def read(self, start: int, count: int) -> list[Row]:
        """Rows of the row groups that hold them."""
        found: list[Row] = []
        with open_file(self.path) as stream:
            file = pq.ParquetFile(stream, pre_buffer=False)
            group = bisect_right(self._ends, start)
            while group < len(self._ends) and len(found) < count:
                skipped = start + len(found) - (self._ends[group - 1] if group else 0)
                found += self._of_group(file, group, skipped, count - len(found))
                group += 1
        return found

    def at(self, numbers: Sequence[int]) -> list[Row]:
        """A pass over each row group that has some."""
        found: list[Row] = []
        with open_file(self.path) as stream:
            file = pq.ParquetFile(stream, pre_buffer=False)
            for group, of_group in groupby(numbers, partial(bisect_right, self._ends)):
                if group < len(self._ends):
                    before = self._ends[group - 1] if group else 0
                    found += self._picked(file, group, [number - before for number in of_group])
        return found

    def _picked(self, file: pq.ParquetFile, group: int, numbers: Sequence[int]) -> list[Row]:
        found: list[Row] = []
        first = 0
        for batch in file.iter_batches(batch_size=_BATCH, row_groups=[group]):
            inside = [number - first for number in numbers if first <= number < first + batch.num_rows]
            found += plain_rows(batch.take(inside)) if inside else ()
            first += batch.num_rows
            if first > numbers[-1]:
                break
        return found

    def _of_group(self, file: pq.ParquetFile, group: int, skip: int, count: int) -> list[Row]:
        found: list[Row] = []
        for batch in file.iter_batches(batch_size=_BATCH, row_groups=[group]):
            part = batch.slice(min(skip, batch.num_rows), count - len(found))
            skip = max(skip - batch.num_rows, 0)
            found += plain_rows(part)
            if len(found) >= count:
                break
        return found


class CsvRows:
    """CSV: a record may have several lines, so that marks are the bytes before it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.known: int | None = None
        self._marks = array("Q")
        self._counting = threading.Lock()
        with open_file(path) as stream:
            self._header = next(_records(_Counting(stream)), [])

    def count(self) -> int:
        """Reads the file, the first time."""
        with self._counting:
            if self.known is None:
                for _ in self.scan():
                    pass
        assert self.known is not None
        return self.known

    def scan(self, *, spent: bool = True) -> Iterator[Row]:  # noqa: ARG002
        """Every record; takes the marks on the way."""
        marks, number = array("Q"), 0
        with open_file(self.path) as stream:
            counting = _Counting(stream)
            records = _records(counting)
            next(records, None)
            before = counting.read
            for number, record in enumerate(records, 1):
                if number % _EVERY == 1:
                    marks.append(before)
                before = counting.read
                yield {name: value for name, value in self._row(record).items() if name in COLUMNS}
        self._marks, self.known = marks, number

    def read(self, start: int, count: int) -> list[Row]:
        """Rows `start` to `start + count`, read from the nearest mark on."""
        mark, skipped = divmod(start, _EVERY)
        if mark:
            self.count()
        if mark and mark >= len(self._marks):
            return []
        with open_file(self.path) as stream:
            stream.seek(self._marks[mark] if mark else 0)
            skipped += not mark  # the header
            return [self._row(record) for record in islice(_records(_Counting(stream)), skipped, skipped + count)]

    def at(self, numbers: Sequence[int]) -> list[Row]:
        """Each from its nearest mark on."""
        return [row for number in numbers for row in self.read(number, 1)]

    def _row(self, record: list[str]) -> Row:
        row = dict(zip(self._header, record, strict=False))
        if "confidences" in row:  # fields of a user's type stand beside ours, each as JSON has it
            return {name: cell if name == "id" else _value_of(cell) for name, cell in row.items()}
        return {name: _value_of(cell) if name in _NESTED else cell for name, cell in row.items() if cell != ""}


class _Counting:
    """Lines as text, and how many bytes they took."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.read = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._stream.readline(_MOST_BYTES):
            self.read += len(line)
            yield line.decode("utf-8", "replace")


def _records(lines: _Counting) -> Iterator[list[str]]:
    csv.field_size_limit(max(_MOST_BYTES, csv.field_size_limit()))
    return csv.reader(iter(lines))


def _value_of(cell: str) -> Any:
    """A number and its digits as text look the same."""
    try:
        return msgspec.json.decode(cell) if cell else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return cell


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Makes one sentence of what pyarrow says of a file that is no Parquet."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"{path}: is no Parquet file that can be read: {error}") from None
