"""How much of the disk the files and batches of all owners may take (--max_files_gib), and how many files one has.

An upload has the room for its file from its beginning on, so however many come at once, all of them have room.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ..http.http_errors import BUSY, RETRY_AFTER, HttpError
from ..settings import ServeConfig
from .disk import bytes_in
from .file_store import OwnerFiles
from .form import MOST_BESIDE_FILE
from .owners import files_folder

MOST_FILES = 10_000
"""Files of one owner."""
_A_BATCH = 3
"""Sizes of its input that a batch takes at least: the job's rows, their answers, and the output file."""
_FRESH = 10.0
"""Seconds for which a look at the disk is good. Batches and other servers write without telling."""
_CLOSE = {"connection": "close"}


@dataclass(frozen=True)
class Room:
    """What an upload may write."""

    most: int
    """Bytes of its file."""
    refusal: HttpError
    """What a larger file gets."""


class Space:
    """Belongs to one event loop. Another thread may call `check_batch` alone."""

    def __init__(self, settings: ServeConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._folder = files_folder(settings)
        self._looking = asyncio.Lock()
        self._seen_at = -math.inf
        self._kept = 0
        """Bytes on the disk, but for uploads that are coming in."""
        self._added = 0
        """Bytes of files that were kept since a look began."""
        self._uploads: dict[str, int] = {}
        """Bytes that each upload may write, by the name of its folder."""

    async def look(self) -> None:
        """See what is on the disk, unless somebody has a moment ago."""
        async with self._looking:
            if self._clock() - self._seen_at >= _FRESH:
                self._added = 0
                found = await asyncio.to_thread(bytes_in, self._folder, self._uploads)
                self._kept, self._seen_at = found + self._added, self._clock()

    @contextmanager
    def room(self, folder_name: str, length: int | None) -> Iterator[Room]:
        """Room for an upload of at most `length` bytes, form and all, None if that is not known, into a folder of that
        name; its own while the block runs. Raises HttpError: 400 where the disk may not have so much more, 413 where
        the file is certainly too large, 429 where other uploads have the room.
        """
        left = self._settings.most_kept - self._kept
        if left <= 0:
            raise self._full("delete some first")
        larger = self._full(f"the file is larger than the {left / 2**20:g} MiB that are left")
        bounds = Room(self._settings.most_file_bytes, self._too_large()), Room(left, larger)
        for bound in bounds:
            if length is not None and length > bound.most + MOST_BESIDE_FILE:
                raise bound.refusal
        room = min(bounds, key=lambda bound: bound.most)
        most = room.most if length is None else min(room.most, length)
        if most > left - sum(self._uploads.values()):
            raise _later("other uploads have the room that --max_files_gib leaves")
        self._uploads[folder_name] = most
        try:
            yield replace(room, most=most)
        finally:
            del self._uploads[folder_name]

    def added(self, count: int) -> None:
        """A file of so many bytes is kept."""
        self._kept += count
        self._added += count

    def removed(self, count: int) -> None:
        """So many bytes are not kept any more."""
        self._kept -= count

    def check_batch(self, input_bytes: int) -> None:
        """Raises HttpError (400) where a batch of an input of that size would have no room for what it writes."""
        left = self._settings.most_kept - self._kept - sum([*self._uploads.values()])
        if left < _A_BATCH * input_bytes:
            takes = f"a batch writes at least {_A_BATCH} times its input's size"
            raise self._full(
                f"{takes}, {_A_BATCH * input_bytes / 2**20:g} MiB here, and they are not left; delete some files"
            )

    def _too_large(self) -> HttpError:
        told = f"the file is larger than {self._settings.max_file_mib:g} MiB (--max_file_mib)"
        return HttpError(413, told, param="file", code="file_too_large", headers=_CLOSE)

    def _full(self, rest: str) -> HttpError:
        told = f"the server keeps {self._settings.max_files_gib:g} GiB of files (--max_files_gib): {rest}"
        return HttpError(400, told, code="storage_full", headers=_CLOSE)


def check_count(files: OwnerFiles) -> None:
    """Raises HttpError (400) where an owner has as many files as one may have."""
    if files.count() >= MOST_FILES:
        told = f"the server keeps {MOST_FILES} files of one key: delete some first"
        raise HttpError(400, told, code="too_many_files", headers=_CLOSE)


def too_many_uploads(most: int) -> HttpError:
    """More uploads than the server takes at once."""
    return _later(f"the server takes {most} uploads at once (--max_uploads)")


def _later(told: str) -> HttpError:
    headers = {**_CLOSE, "retry-after": str(RETRY_AFTER)}
    return HttpError(429, f"{told}: try again", BUSY, code="too_many_uploads", headers=headers)
