"""One owner's batches on a disk. Several servers may share it: the lock of a batch says which one runs it.

<owner>/batches/<id>/batch.json     the record
                     input.jsonl    the uploaded file, a second name of its content: the first may be deleted
                     rows.jsonl     what the job reads
                     answers…       what it writes; its dead letters too
                     job.log        what it prints
                     cancel         somebody has asked for the end
                     lock           held by the server that runs it
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..files.disk import is_id, private_folder, read_record, sortable_id, sync_folder, write_whole
from .record import Batch

PREFIX = "batch_"
_KEPT = ("batch.json",)
"""What stays of a batch that has ended."""


class BatchFolder:
    """One batch's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.input = path / "input.jsonl"
        self.rows = path / "rows.jsonl"
        self.answers = path / "answers"
        self.log = path / "job.log"
        self._record = path / "batch.json"
        self._cancel = path / "cancel"

    def read(self) -> Batch | None:
        """The record; None where there is none, or it is damaged."""
        return read_record(self._record, Batch)

    def save(self, batch: Batch, *, lasting: bool = True) -> None:
        """Replace the record. Counts alone need not last: they are counted again."""
        write_whole(self._record, msgspec.json.encode(batch), lasting=lasting)

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has asked for the end."""
        return self._cancel.exists()

    def cancel(self) -> None:
        """Ask for the end, of whichever server runs it."""
        self._cancel.touch()
        sync_folder(self.path)

    @contextlib.contextmanager
    def try_lock(self) -> Iterator[bool]:
        """Hold the batch's lock while the block runs; gives False where another server holds it."""
        with (self.path / "lock").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def clear(self) -> None:
        """Remove what a batch that has ended needs no more."""
        for each in self.path.iterdir():
            if each.name in _KEPT:
                continue
            if each.is_dir():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)


class Batches:
    """The batches of one owner."""

    def __init__(self, owner: Path) -> None:
        self._folder = owner / "batches"

    def all(self) -> list[Batch]:
        """All batches, the latest first."""
        names = (each.name for each in self._folder.iterdir()) if self._folder.is_dir() else ()
        found = (self.get(name) for name in sorted(names, reverse=True))
        return [each for each in found if each is not None]

    def open(self) -> list[Batch]:
        """Batches that have not ended. Files are removed that a killed server left of those that have."""
        found = self.all()
        for batch in found:
            if batch.has_ended:
                self.folder(batch.id).clear()
        return [each for each in found if not each.has_ended]

    def get(self, batch_id: str) -> Batch | None:
        """A batch; None where there is none of that id."""
        return self.folder(batch_id).read() if is_id(PREFIX, batch_id) else None

    def folder(self, batch_id: str) -> BatchFolder:
        """The files of a batch."""
        return BatchFolder(self._folder / batch_id)

    def create(self, batch: Batch, content: Path) -> BatchFolder:
        """Keep a new batch, and the content of its file; raises FileNotFoundError where that is gone."""
        place = private_folder(self._folder) / batch.id
        beside = self._folder / f".new-{batch.id}"
        beside.mkdir(mode=0o700)
        try:
            os.link(content, beside / "input.jsonl")
            BatchFolder(beside).save(batch)
            beside.rename(place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        sync_folder(self._folder)
        return BatchFolder(place)


def next_id() -> str:
    """An id for a new batch."""
    return sortable_id(PREFIX)
