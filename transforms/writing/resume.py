"""Continues an earlier run: its rows are kept, and their prompts skipped."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems

from millrace.model_manager.wire.messages import FinishReason

from ..elements.completions import Prompt
from ..files.file_systems import create, rename
from ..files.formats import OutputFormat
from ..files.lines import read_lines
from ..files.object_reads import open_file
from .csv_rows import read_csv
from .output_files import OutputFiles, output_and_format
from .output_rows import write_rows

_MAX_LINE = 1 << 30
_DIGEST = 16


class _Row(msgspec.Struct):
    id: str
    finish_reason: str = FinishReason.STOP
    """Rows of a user's type have none, and are there only where they are complete."""

    @property
    def completed(self) -> bool:
        """True if the prompt has its result."""
        return self.finish_reason != FinishReason.ERROR


class SkipCompleted(beam.PTransform):
    """Drops the prompts whose completions an earlier output holds. Failed prompts are tried again.

    When applied, it first makes files of the complete rows that an interrupted run left. If that run had --overwrite,
    the files that it was to replace do not count, and are removed when this run is done. Every worker holds the ids as
    hashes of 16 bytes. Where prompts share an id, one completion counts for all.
    """

    def __init__(self, output: str, *, output_format: str | None = None, schema: pa.Schema | None = None) -> None:
        """As for WriteCompletions."""
        super().__init__()
        prefix, self._format = output_and_format(output, output_format)
        self._files = OutputFiles(prefix)
        self._schema = schema

    def expand(self, prompts: Any) -> Any:
        salvage(self._files, self._format, self._schema)
        done = (
            prompts.pipeline
            | "Earlier files" >> beam.Create(self._files.current("completions"))
            | "Spread" >> beam.Reshuffle()
            | "Their ids" >> beam.Map(lambda path: b"".join(map(_digest, completed_ids(path))))
            | "All ids" >> beam.CombineGlobally(_joined)
        )
        return prompts | "Skip" >> beam.ParDo(_Skip(), beam.pvalue.AsSingleton(done)).with_output_types(Prompt)


class _Skip(beam.DoFn):
    def __init__(self) -> None:
        self._raw: bytes | None = None

    def process(self, prompt: Prompt, done: bytes) -> Iterator[Prompt]:
        if done is not self._raw:
            self._raw, self._ids = done, IdSet(done)
        if prompt.id not in self._ids:
            yield prompt


class IdSet:
    """Ids by their hashes, 16 bytes each."""

    def __init__(self, digests: bytes) -> None:
        """`digests`: the digests of all ids, one after the other."""
        pairs = np.frombuffer(digests, dtype="u8").reshape(-1, 2)
        self._pairs = pairs[np.argsort(pairs[:, 0])]

    def __contains__(self, identity: str) -> bool:
        high, low = np.frombuffer(_digest(identity), dtype="u8")
        begin, end = (int(np.searchsorted(self._pairs[:, 0], high, side)) for side in ("left", "right"))
        return bool((self._pairs[begin:end, 1] == low).any())


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts)


def _digest(identity: str) -> bytes:
    return hashlib.blake2b(identity.encode(), digest_size=_DIGEST).digest()


def completed_ids(path: str) -> Iterator[str]:
    """The ids of the completions that a finished shard holds."""
    with open_file(path) as stream:
        if path.endswith(".parquet"):
            file = pq.ParquetFile(stream, page_checksum_verification=True)
            names = [name for name in _Row.__struct_fields__ if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=names):
                yield from (row["id"] for row in batch.to_pylist() if _Row(**row).completed)
        elif path.endswith(".csv"):
            yield from (row["id"] for row in read_csv(stream) if row.get("finish_reason") != FinishReason.ERROR)
        else:
            rows = (msgspec.json.decode(line, type=_Row) for line in stream)
            yield from (row.id for row in rows if row.completed)


def count_completed(output: str) -> int:
    """How many completions an output holds, without an interrupted run's."""
    return sum(1 for path in OutputFiles(output).current("completions") for _ in completed_ids(path))


def salvage(files: OutputFiles, output_format: OutputFormat, schema: pa.Schema | None = None) -> int:
    """Make a finished shard of the complete rows of an interrupted run, each id once; returns how many there were."""
    left = files.interrupted("completions")
    if left:
        known = {_digest(identity) for path in files.current("completions") for identity in completed_ids(path)}
        label = files.next_label() if files.existing("completions") else ""
        target = files.shard("completions", [label, "salvaged"], 0, 1, output_format)
        count = _write_salvaged(files, _new_rows(left, known), target, schema)
    files.clear(keep_mark=True)
    return count if left else 0


def _new_rows(left: list[str], known: set[bytes]) -> Iterator[bytes]:
    for path in left:
        with open_file(path) as stream:
            for line in read_lines(stream, limit=_MAX_LINE):
                row = _complete_row(line.data)
                if row is not None and row.completed and _digest(row.id) not in known:
                    known.add(_digest(row.id))
                    yield line.data + b"\n"


def _complete_row(line: bytes) -> _Row | None:
    """None for the row that was being written."""
    try:
        return msgspec.json.decode(line, type=_Row)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _write_salvaged(files: OutputFiles, rows: Iterator[bytes], target: str, schema: pa.Schema | None) -> int:
    built = FileSystems.join(files.temporary, f"building-{uuid.uuid4().hex}")
    with create(built) as stream:
        count = write_rows(rows, stream, target, schema)
    if count:
        rename(built, target)
    return count
