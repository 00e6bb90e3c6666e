"""One owner's files on a disk. Knows no HTTP, and not what is in a file.

<owner>/files/<id>/content, file.json       a whole file
<owner>/files/.new-<id>/…                   one that is being written; a server that starts removes what is a day old
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from .disk import bytes_in, is_id, private_folder, read_record, sortable_id, sync_folder

Purpose = Literal["batch", "batch_output"]
_PREFIX = "file-"
_NEW = ".new-"
_ABANDONED = 86400.0
"""Seconds after which nobody writes a new file any more."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose

    def shown(self) -> dict[str, Any]:
        """The file's record as OpenAI's clients read it."""
        return {**msgspec.structs.asdict(self), "object": "file", "status": "processed", "expires_at": None}


class OwnerFiles:
    """The files of one owner."""

    def __init__(self, owner: Path) -> None:
        """`owner`: the folder; it is made when there is something to keep."""
        self._folder = owner / "files"

    def all(self) -> list[StoredFile]:
        """All whole files, the latest first."""
        names = (each.name for each in self._folder.iterdir()) if self._folder.is_dir() else ()
        found = (self.get(name) for name in sorted(names, reverse=True))
        return [each for each in found if each is not None]

    def get(self, file_id: str) -> StoredFile | None:
        """A file; None where there is none of that id, or its record is damaged."""
        return read_record(self._folder / file_id / "file.json", StoredFile) if is_id(_PREFIX, file_id) else None

    def content(self, file_id: str) -> Path:
        """Where the content of a file is."""
        return self._folder / file_id / "content"

    def count(self) -> int:
        """How many files there are, those that are being written among them."""
        return len(os.listdir(self._folder)) if self._folder.is_dir() else 0  # noqa: PTH208 (for speed)

    def disk_bytes(self, file_id: str) -> int:
        """What the disk has for a file."""
        return bytes_in(self._folder / file_id)

    def delete(self, file_id: str) -> int:
        """Remove a file; whoever reads it goes on. Returns the bytes that the disk has back: none where a batch has the
        content under a name of its own.
        """
        gone = self._folder / f"{_NEW}{sortable_id(_PREFIX)}"
        (self._folder / file_id).rename(gone)
        try:
            is_shared = (gone / "content").lstat().st_nlink > 1
            return 0 if is_shared else bytes_in(gone)
        finally:
            shutil.rmtree(gone, ignore_errors=True)

    def new(self, file_id: str | None = None) -> NewFile:
        """Begin a file, by default under an id of its own."""
        return NewFile(private_folder(self._folder), file_id or sortable_id(_PREFIX))

    def next_id(self) -> str:
        """An id for a file that is to be written."""
        return sortable_id(_PREFIX)

    def remove_abandoned(self) -> None:
        """Remove what servers that are gone had begun to write."""
        for each in self._folder.glob(f"{_NEW}*"):
            with contextlib.suppress(FileNotFoundError):  # another server has just finished it
                if time.time() - each.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(each, ignore_errors=True)


class NewFile:
    """A file that is being written; what is not kept in the end is removed. A context manager."""

    def __init__(self, folder: Path, file_id: str) -> None:
        self.id = file_id
        self._place = folder / file_id
        self._beside = folder / f"{_NEW}{file_id}-{sortable_id('')[-12:]}"
        self._beside.mkdir(mode=0o700)
        self.stream = (self._beside / "content").open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stream.close()
        except OSError:  # the disk is full; who writes has been told
            if error is None:
                raise
        finally:
            shutil.rmtree(self._beside, ignore_errors=True)

    @property
    def folder_name(self) -> str:
        """The name of the folder that has it until it is whole."""
        return self._beside.name

    def keep(self, filename: str, purpose: Purpose) -> StoredFile:
        """Make it a file of the owner's, whole and lasting. One of that id that is there already stays."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        made = StoredFile(
            id=self.id, bytes=self.stream.tell(), created_at=int(time.time()), filename=filename, purpose=purpose
        )
        described = self._beside / "file.json"
        with described.open("wb") as stream:
            stream.write(msgspec.json.encode(made))
            stream.flush()
            os.fsync(stream.fileno())
        try:
            self._beside.rename(self._place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        sync_folder(self._place.parent)
        return made
