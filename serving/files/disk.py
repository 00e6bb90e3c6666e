"""Files and batches on a disk: private folders, names in order of time, writes that are whole or not there."""

from __future__ import annotations

import logging
import os
import secrets
import stat
import time
from collections.abc import Container
from pathlib import Path
from typing import TypeVar

import msgspec

from millrace.model_manager.wire.decoding import json_decoder

_PRIVATE = 0o700
_BLOCK = 512
"""Bytes of a block as the system counts them, whatever the disk's own are."""
_Record = TypeVar("_Record", bound=msgspec.Struct)
_log = logging.getLogger(__name__)


def private_folder(path: Path) -> Path:
    """The folder; made for this user alone, and so are those above it that are missing."""
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir(mode=_PRIVATE, exist_ok=True)
    return path


def sortable_id(prefix: str) -> str:
    """An id that no other has; later ones sort behind earlier ones."""
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(6)}"


def is_id(prefix: str, name: str) -> bool:
    """Whether `sortable_id` can have made the name, so that it leads to no other folder."""
    rest = name.removeprefix(prefix)
    return name.startswith(prefix) and len(rest) == 28 and set(rest) <= set("0123456789abcdef")


def read_record(path: Path, kind: type[_Record]) -> _Record | None:
    """A record in JSON. None where there is no such file, or where it is damaged: the log names that one."""
    try:
        return json_decoder(kind).decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("%s is damaged and is left out: %s", path, error)
        return None


def write_whole(path: Path, data: bytes, *, lasting: bool = True) -> None:
    """Replace a file at once: readers find the old content or the new. `lasting`: also after a crash of the machine."""
    beside = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        with beside.open("wb") as stream:
            stream.write(data)
            if lasting:
                stream.flush()
                os.fsync(stream.fileno())
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if lasting:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bytes_in(folder: Path, without: Container[str] = ()) -> int:
    """What the disk has for all that is under a folder, folders too, except for folders of the names `without`. Files
    that are removed meanwhile do not count.
    """
    total = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in without]
        for path in (place, *(os.path.join(place, name) for name in names)):  # noqa: PTH118 (a Path for each file takes most of the time)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            is_linked = found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode)
            total += max(found.st_size, found.st_blocks * _BLOCK) // (found.st_nlink if is_linked else 1)
    return total
