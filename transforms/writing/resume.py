"""Continues an earlier run: its rows are kept, and their prompts skipped."""

from __future__ import annotations

import csv
import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO

import apache_beam as beam
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems

from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.request import FinishReason

from ..elements.completions import Prompt
from ..elements.repeated_ids import AnsweredIds
from ..files.file_systems import create, rename
from ..files.formats import OutputFormat
from ..files.lines import read_lines
from ..files.object_reads import open_file
from .csv_rows import read_csv
from .output_files import OutputFiles, output_and_format
from .output_rows import write_rows
from .shards import FULL_BYTES

_MAX_LINE = 1 << 30
_DIGEST = 16
_HASH = 8
_ENTRY = _DIGEST + _HASH
_NEAR = 8
"""Entries in a bucket, about."""


class _Row(msgspec.Struct):
    id: str
    prompt_hash: str | None = None
    """None or empty in rows of RunInference, and of versions that did not write it."""
    finish_reason: str = FinishReason.STOP
    """Rows of a user's type have none, and are there only where they are complete."""

    @property
    def completed(self) -> bool:
        """True if the prompt has its result."""
        return self.finish_reason != FinishReason.ERROR


class SkipCompleted(beam.PTransform):
    """Drops the prompts whose completions an earlier output holds. Failed prompts are tried again.

    A completion counts for the prompts of its id whose content and own parameters it answers (`prompt_hash`). A prompt
    that shares the id of a completion and says something else is not skipped; it is counted for the job's summary.

    When applied, it first makes files of the complete rows that an interrupted run left. If that run had --overwrite,
    the files that it was to replace do not count, and are removed when this run is done. Every worker holds the ids and
    contents as hashes, 24 bytes a row.
    """

    def __init__(
        self,
        output: str,
        *,
        output_format: str | None = None,
        schema: pa.Schema | None = None,
        ids_alone: bool = False,
    ) -> None:
        """`ids_alone`: a completion counts for every prompt of its id, for prompts that another template makes now.

        The others are as for WriteCompletions.
        """
        super().__init__()
        prefix, self._format = output_and_format(output, output_format)
        self._files = OutputFiles(prefix)
        self._schema = schema
        self._ids_alone = ids_alone

    def expand(self, prompts: Any) -> Any:
        salvage(self._files, self._format, self._schema)
        done = (
            prompts.pipeline
            | "Earlier files" >> beam.Create(self._files.current("completions"))
            | "Spread" >> beam.Reshuffle()
            | "Their ids" >> beam.Map(lambda path: b"".join(map(_entry, completed_rows(path))))
            | "All ids" >> beam.CombineGlobally(_joined)
        )
        skip = beam.ParDo(_Skip(self._ids_alone), beam.pvalue.AsSingleton(done))
        return prompts | "Skip" >> skip.with_output_types(Prompt)


class _Skip(beam.DoFn):
    def __init__(self, ids_alone: bool) -> None:
        self._ids_alone = ids_alone
        self._other = AnsweredIds()
        self._raw: bytes | None = None

    def process(self, prompt: Prompt, done: bytes) -> Iterator[Prompt]:
        if done is not self._raw:
            self._raw, self._answered = done, Answered(done)
        hashes = self._answered.hashes(prompt.id)
        if not hashes:
            yield prompt
        elif not (self._ids_alone or hashes & {0, _number(prompt.prompt_hash)}):
            self._other.count(prompt.id)
            yield prompt


class Answered:
    """Completed rows: 16 bytes of hash for each id, 8 for what it says."""

    def __init__(self, entries: bytes) -> None:
        """`entries`: all rows' entries, one after the other."""
        rows = np.frombuffer(entries, dtype="<u8").reshape(-1, _ENTRY // 8)
        rows = rows[np.argsort(rows[:, 0])]
        bits = max(1, (len(rows) // _NEAR).bit_length())
        self._shift = 64 - bits
        firsts = np.arange(2**bits, dtype=np.uint64) << np.uint64(self._shift)
        begins = np.append(np.searchsorted(rows[:, 0], firsts), len(rows)) * _ENTRY
        self._begins = memoryview(begins.astype(np.int64).tobytes()).cast("q")
        """Where in `_entries` those begin whose hash begins with these bits."""
        self._entries = rows.tobytes()

    def hashes(self, identity: str) -> set[int]:
        """The prompt hashes of the completions of an id; 0 is one that is not known."""
        digest = _digest(identity)
        bucket = int.from_bytes(digest[:8], "little") >> self._shift
        near = self._entries[self._begins[bucket] : self._begins[bucket + 1]]
        found, at = set(), near.find(digest)
        while at >= 0:
            if at % _ENTRY == 0:
                found.add(int.from_bytes(near[at + _DIGEST : at + _ENTRY], "little"))
            at = near.find(digest, at + 1)
        return found


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts)


def _digest(identity: str) -> bytes:
    return hashlib.blake2b(identity.encode(), digest_size=_DIGEST).digest()


def _entry(row: _Row) -> bytes:
    return _digest(row.id) + _number(row.prompt_hash).to_bytes(_HASH, "little")


def _number(prompt_hash: str | None) -> int:
    return int(prompt_hash, 16) if prompt_hash else 0


def completed_ids(path: str) -> Iterator[str]:
    """The ids of the completions that a finished shard holds; raises ConfigError for a file that is not whole."""
    return (row.id for row in completed_rows(path))


def completed_rows(path: str) -> Iterator[_Row]:
    """The completions that a finished shard holds; raises ConfigError for a file that is not whole."""
    try:
        with open_file(path) as stream:
            yield from (row for row in _rows(path, stream) if row.completed)
    except (msgspec.MsgspecError, UnicodeError, csv.Error, EOFError, pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, and not what Arrow finds in a file
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path}: cut off or damaged, so --resume does not know what it holds ({reason}): put back a copy that is "
            "whole, or remove the file, and its prompts are asked again"
        ) from None


def _rows(path: str, stream: BinaryIO) -> Iterator[_Row]:
    if path.endswith(".parquet"):
        file = pq.ParquetFile(stream, page_checksum_verification=True)
        names = [name for name in _Row.__struct_fields__ if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=names):
            yield from (msgspec.convert(row, _Row) for row in batch.to_pylist())
    elif path.endswith(".csv"):
        _check_last_row(stream)
        yield from (msgspec.convert(row, _Row) for row in read_csv(stream))
    else:
        yield from (msgspec.json.decode(line, type=_Row) for line in stream)


def _check_last_row(stream: BinaryIO) -> None:
    """A row of CSV that was cut off may read as one that is whole."""
    if stream.seek(0, os.SEEK_END):
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) != b"\n":
            raise EOFError("the last row does not end in a newline")
    stream.seek(0)


def count_completed(output: str) -> int:
    """How many completions an output holds, without an interrupted run's."""
    return sum(1 for path in OutputFiles(output).current("completions") for _ in completed_ids(path))


def salvage(files: OutputFiles, output_format: OutputFormat, schema: pa.Schema | None = None) -> int:
    """Make files of the complete rows of an interrupted run, each once; returns how many there were."""
    left = files.interrupted("completions")
    if left:
        known = {_entry(row) for path in files.current("completions") for row in completed_rows(path)}
        label = files.next_label() if files.existing("completions") else ""
        name = partial(files.shard, "completions", [label, "salvaged"], extension=output_format)
        count = _write_salvaged(files, _new_rows(left, known), name, schema)
    files.clear(keep_mark=True)
    return count if left else 0


def _new_rows(left: list[str], known: set[bytes]) -> Iterator[bytes]:
    for path in left:
        with open_file(path) as stream:
            for line in read_lines(stream, limit=_MAX_LINE):
                row = _complete_row(line.data)
                if row is not None and row.completed and (entry := _entry(row)) not in known:
                    known.add(entry)
                    yield line.data + b"\n"


def _complete_row(line: bytes) -> _Row | None:
    """None for the row that was being written."""
    try:
        return msgspec.json.decode(line, type=_Row)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _write_salvaged(
    files: OutputFiles, rows: Iterator[bytes], name: Callable[[int, int], str], schema: pa.Schema | None
) -> int:
    """`name`: the path of a file, by its number and how many there are."""
    built, count = [], 0
    for part in _parts(rows):
        built.append(FileSystems.join(files.temporary, f"building-{uuid.uuid4().hex}"))
        with create(built[-1]) as stream:
            count += write_rows(part, stream, name(0, 1), schema)
    for number, path in enumerate(built):
        rename(path, name(number, len(built)))
    return count


def _parts(rows: Iterator[bytes]) -> Iterator[Iterator[bytes]]:
    """The rows of one file after the other; each is to be read before the next."""
    for first in rows:
        yield _part(first, rows)


def _part(first: bytes, others: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    size = len(first)
    while size < FULL_BYTES and (row := next(others, None)) is not None:
        size += len(row)
        yield row
