"""Temporary shards: rows are appended as they come, flushed on a disk at once, so that an interrupted run keeps them.

Object stores cannot append: there, a shard appears when it is full, or when its bundle ends.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.utils.windowed_value import WindowedValue

from millrace.model_manager.wire.errors import StorageError

from ..elements.completions import Completion, DeadLetter
from ..elements.task_results import Result
from ..files.object_stores import explained, is_local
from .output_files import OutputFiles, OutputKind
from .output_rows import json_line

FULL_BYTES = 256 * 2**20
"""A shard of this size is closed, and the next row begins another: a bundle may be a whole job."""
_MAX_OPEN_WINDOWS = 64


class Shard(msgspec.Struct, frozen=True):
    """A closed temporary shard."""

    kind: OutputKind
    path: str
    rows: int
    size: int
    """Bytes."""


class WriteShards(beam.DoFn):
    """Elements of a kind → the temporary shards that hold them: full ones, and one more for each bundle and window."""

    def __init__(self, files: OutputFiles, run: str, kind: OutputKind, *, openai: bool, refuses: bool = False) -> None:
        """`openai`: as json_line takes it. `refuses`: output that came since the graph was built is an error."""
        self._openai = openai
        self._files = files
        self._refuses = refuses
        self._run = run
        self._kind: OutputKind = kind
        self._open: dict[Any, _OpenShard] = {}

    def setup(self) -> None:
        if self._refuses:  # before anything is paid for; all bundles are done before the first file is in its place
            self._files.check_finished()

    def start_bundle(self) -> None:
        self._abandon()
        self._closed: list[tuple[Any, Shard]] = []

    def process(self, element: Completion | Result | DeadLetter, window: Any = beam.DoFn.WindowParam) -> None:
        if window not in self._open:
            self._make_room()
            path = self._files.temporary_shard(self._run, self._kind, uuid.uuid4().hex)
            self._open[window] = _OpenShard(path)
        shard = self._open[window]
        shard.append(json_line(element, openai=self._openai))
        if shard.size >= FULL_BYTES:
            self._close(window)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        while self._open:
            self._close(next(iter(self._open)))
        for window, shard in self._closed:
            yield WindowedValue(shard, window.max_timestamp(), [window])

    def teardown(self) -> None:
        self._abandon()

    def _make_room(self) -> None:
        if len(self._open) >= _MAX_OPEN_WINDOWS:
            self._close(next(iter(self._open)))

    def _close(self, window: Any) -> None:
        shard = self._open.pop(window)
        shard.close()
        self._closed.append((window, Shard(self._kind, shard.path, shard.rows, shard.size)))

    def _abandon(self) -> None:
        """Close what a failed bundle left open; its rows stay where a resumed run looks for them."""
        while self._open:
            with contextlib.suppress(OSError, StorageError):
                self._open.popitem()[1].close()


class _OpenShard:
    def __init__(self, path: str) -> None:
        self.path = path
        self.rows = 0
        self.size = 0
        self._flushes = is_local(path)
        with explained(path, "written"):
            self._stream = FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)

    def append(self, line: bytes) -> None:
        with explained(self.path, "written"):
            self._stream.write(line)
            if self._flushes:
                self._stream.flush()
        self.rows += 1
        self.size += len(line)

    def close(self) -> None:
        with explained(self.path, "written"):
            self._stream.close()
