"""Temporary folders of processes that may be killed: what one left is removed when the next one of its kind begins.

A process holds the lock of its folder, and the kernel frees it however the process ends. So a folder whose lock is free
belongs to nobody any more, also where several containers share a disk and number their processes alike.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A folder `millrace-<kind>-…` of this process; gone after the block, or when the next one of the kind begins."""
    prefix = f"millrace-{kind}-"
    _sweep(prefix)
    folder, lock = _made(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextlib.contextmanager
def temporary_files(kind: str) -> Iterator[None]:
    """While the block runs, this process makes all its temporary files in a `temporary_folder`.

    Beam leaves some behind. Their folders name no owner, so nobody else may remove them after the process was killed.
    """
    with temporary_folder(kind) as folder:
        before, tempfile.tempdir = tempfile.tempdir, str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = before


def _made(prefix: str) -> tuple[Path, int]:
    """A folder, and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError):  # another process swept it before it was locked
            lock = os.open(folder, _OPENED)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _sweep(prefix: str) -> None:
    """Remove this user's folders that no process has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another user's, or a process removes it just now, or is alive
            if folder.lstat().st_uid == os.geteuid():
                _remove_unlocked(folder)


def _remove_unlocked(folder: Path) -> None:
    """Raises BlockingIOError where a process has it."""
    lock = os.open(folder, _OPENED)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
