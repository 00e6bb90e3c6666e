"""Reads of an output what says which prompts are answered: ids, what the prompts said, and how the rows ended."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.model_manager.wire.decoding import convert, json_decoder
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.request import FinishReason

from ..files.object_reads import open_file
from .answered_rows import entry
from .csv_rows import read_cells
from .output_files import OutputFiles

_AT_ONCE = 1024
"""Rows of Parquet that are Python objects at a time."""


class CompletedRow(msgspec.Struct):
    """The columns that are read."""

    id: str
    prompt_hash: str | None = None
    """None or empty in rows of RunInference, and of versions that did not write it."""
    finish_reason: str = FinishReason.STOP
    """Rows of a user's type have none, and are there only where they are complete."""

    @property
    def completed(self) -> bool:
        """True if the prompt has its result."""
        return self.finish_reason != FinishReason.ERROR


_decode = json_decoder(CompletedRow).decode


def completed_entry(line: bytes) -> bytes | None:
    """The entry of a row with a result; None for another row, and for one that was being written or is damaged."""
    try:
        line.decode()  # values that are not read here are not checked when the row is decoded
        row = _decode(line)
        return entry(row.id, row.prompt_hash) if row.completed else None
    except (msgspec.MsgspecError, ValueError):
        return None


def completed_ids(path: str) -> Iterator[str]:
    """The ids of the completions that a finished shard holds; raises ConfigError for a file that is not whole."""
    with _damage_told(path):
        yield from (row.id for row in _completed(path))


def count_completed(output: str) -> int:
    """How many completions an output holds, without an interrupted run's."""
    return sum(1 for path in OutputFiles(output).current("completions") for _ in completed_ids(path))


def completed_entries(paths: Iterable[str]) -> bytearray:
    """The entries of the completions that finished shards hold, one after the other; raises as `completed_ids`."""
    entries = bytearray()
    for path in paths:
        with _damage_told(path):
            for row in _completed(path):
                entries += entry(row.id, row.prompt_hash)
    return entries


@contextlib.contextmanager
def _damage_told(path: str) -> Iterator[None]:
    """Raise ConfigError for what a damaged file raises."""
    try:
        yield
    except ConfigError:
        raise
    except (msgspec.MsgspecError, csv.Error, EOFError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, and not what Arrow finds in a file
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path}: cut off or damaged, so --resume does not know what it holds ({reason}): put back a copy that is "
            "whole, or remove the file, and its prompts are asked again"
        ) from None


def _completed(path: str) -> Iterator[CompletedRow]:
    with open_file(path) as stream:
        yield from (row for row in _rows(path, stream) if row.completed)


def _rows(path: str, stream: BinaryIO) -> Iterator[CompletedRow]:
    if path.endswith(".parquet"):
        yield from _parquet_rows(stream)
    elif path.endswith(".csv"):
        _check_last_row(stream)
        yield from (convert(row, CompletedRow) for row in read_cells(stream))
    else:
        yield from map(_decode, stream)


def _parquet_rows(stream: BinaryIO) -> Iterator[CompletedRow]:
    file = pq.ParquetFile(stream, page_checksum_verification=True)
    names = [name for name in CompletedRow.__struct_fields__ if name in file.schema_arrow.names]
    for batch in file.iter_batches(_AT_ONCE, columns=names, use_threads=False):  # each thread would keep memory
        yield from convert(batch.to_pylist(), list[CompletedRow])
    pa.default_memory_pool().release_unused()


def _check_last_row(stream: BinaryIO) -> None:
    """A row of CSV that was cut off may read as one that is whole."""
    if stream.seek(0, os.SEEK_END):
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) != b"\n":
            raise EOFError("the last row does not end in a newline")
    stream.seek(0)
