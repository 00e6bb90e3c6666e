"""Temporary shards → the output's files. Each step may be repeated, or broken off anywhere, and repeated."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import apache_beam as beam
import msgspec
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems

from ..files.file_systems import create, exists, remove, rename
from ..files.object_reads import open_file
from .output_files import IfExists, OutputFiles, OutputKind, RunFiles
from .output_rows import write_rows
from .shards import FULL_BYTES, Shard

_CHUNK = 1 << 20
_SUPERSEDED: dict[IfExists, list[OutputKind]] = {
    "refuse": [],
    "resume": ["dead_letters"],  # their rows were tried again
    "overwrite": ["completions", "dead_letters"],
}


class PlannedFile(msgspec.Struct, frozen=True):
    """A file of the output and the temporary shards that make it up."""

    kind: OutputKind
    path: str
    sources: list[str]
    rows: int


class WrittenFile(msgspec.Struct, frozen=True):
    """A file of the output."""

    kind: OutputKind
    path: str
    rows: int


class PlanFiles(beam.DoFn):
    """(kind, all its shards of a window) → the files that they become: small shards together, up to 256 MiB."""

    def __init__(self, files: RunFiles, num_shards: int | None) -> None:
        self._files = files
        self._num_shards = num_shards

    def process(
        self,
        element: tuple[OutputKind, Iterable[Shard]],
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[PlannedFile]:
        kind, shards = element
        groups = grouped(sorted(shards, key=lambda shard: (-shard.size, shard.path)), self._num_shards)
        for index, group in enumerate(groups):
            path = self._files.path(kind, window, pane, index, len(groups))
            yield PlannedFile(kind, path, [shard.path for shard in group], sum(shard.rows for shard in group))


def grouped(shards: list[Shard], num_shards: int | None) -> list[list[Shard]]:
    """The shards in as many groups as asked for (fewer where there are fewer), else by size."""
    if num_shards is not None:
        groups = [shards[index::num_shards] for index in range(num_shards)]
        return [group for group in groups if group]
    by_size: list[list[Shard]] = []
    size = FULL_BYTES
    for shard in shards:
        if size + shard.size > FULL_BYTES:
            by_size.append([])
            size = 0
        by_size[-1].append(shard)
        size += shard.size
    return by_size


class MakeFile(beam.DoFn):
    """Builds a planned file beside the shards and renames it into its place."""

    def __init__(self, files: OutputFiles, schema: pa.Schema | None = None) -> None:
        """`schema`: as write_rows takes it."""
        self._files = files
        self._schema = schema

    def process(self, planned: PlannedFile) -> Iterator[WrittenFile]:
        there = [path for path in planned.sources if exists(path)]
        if len(there) == len(planned.sources):
            self._make(planned)
        elif not exists(planned.path) or planned.path in self._files.superseded():
            raise FileNotFoundError(f"{planned.path}: {len(planned.sources) - len(there)} of its shards are gone")
        # otherwise an earlier attempt got as far as removing them: the file is in its place
        remove(there)
        yield WrittenFile(planned.kind, planned.path, planned.rows)

    def _make(self, planned: PlannedFile) -> None:
        are_lines = planned.path.endswith(".jsonl")
        if len(planned.sources) == 1 and are_lines:
            rename(planned.sources[0], planned.path)
            return
        built = FileSystems.join(self._files.temporary, f"building-{uuid.uuid4().hex}")  # attempts may overlap
        with create(built) as stream:
            if are_lines:
                _concatenate(planned.sources, stream)
            else:
                write_rows(shard_lines(planned.sources), stream, planned.path, self._schema)
        rename(built, planned.path)


def _concatenate(sources: list[str], target: BinaryIO) -> None:
    for source in sources:
        with open_file(source) as stream:
            while chunk := stream.read(_CHUNK):
                target.write(chunk)


def shard_lines(sources: list[str]) -> Iterator[bytes]:
    """The lines of temporary shards, one after the other."""
    for source in sources:
        with open_file(source) as stream:
            yield from stream


class CleanUp(beam.DoFn):
    """When all files are in their places: removes what is temporary and, as far as asked for, what was there before."""

    def __init__(self, files: OutputFiles, if_exists: IfExists) -> None:
        self._files = files
        self._if_exists = if_exists

    def process(self, written: tuple[str, Iterable[str]]) -> None:
        """All files' paths together, and an empty one, so that there is something to wait for where there are none."""
        ours = {path for path in written[1] if path}
        remove([path for path in self._files.superseded() if path not in ours])
        for kind in _SUPERSEDED[self._if_exists]:
            remove([path for path in self._files.existing(kind) if path not in ours])
        self._files.clear()
