"""What a server that is killed leaves outside its folder: shared memory, and folders of Triton's Python back end.

A file counts as the server's own if it appeared after the guard had started, if one of the server's processes used it,
and if no process that still runs does. So files of other servers stay, and so does a model that somebody keeps in
/dev/shm: servers map models, but never to write to them. Reads /proc; on other systems it finds nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

_SHARED = "/dev/shm"
_WRITABLE = re.compile(rf"^\S+ rw.s \S+ \S+ +(\d+) +({_SHARED}/[^/\n]+)$", re.MULTILINE)
"""A line of /proc/PID/maps: a mapping that several processes write to; its inode and path."""
_FOLDER = re.compile(r"/tmp/folder[A-Za-z0-9]{6}(?=/)")
"""Where Triton copies a model that it is given in a request; the processes of its Python back end run from there."""
_LOOKS = 5
"""How often a new file is looked at for a process of the server that uses it: one may be about to."""

Found = dict[str, int]
"""Inodes by path."""


class Leftovers:
    """Notes what a server uses while it runs, because nobody can tell afterwards."""

    def __init__(self) -> None:
        """Before the server starts: what is there now is not its own."""
        self._before = _candidates()
        self._own: Found = {}
        self._looks = Counter[tuple[str, int]]()
        self._lock = threading.Lock()

    def look(self, below: Callable[[], Iterable[int]]) -> None:
        """Note what the processes of the server use, if there is something new. `below`: their ids."""
        new = {item for item in _candidates().items() if item not in self._before.items()}
        new = {item for item in new if item not in self._own.items() and self._looks[item] < _LOOKS}
        if new:
            self._looks.update(new)
            self.note(below())

    def note(self, pids: Iterable[int]) -> None:
        """Note what these processes use."""
        with self._lock:
            for pid in pids:
                self._own |= {path: inode for path, inode in _used(pid).items() if self._before.get(path) != inode}

    def remove(self) -> None:
        """After the end of the server: remove what it has left. A second caller waits for the first one."""
        with self._lock:
            left = {path for path, inode in self._own.items() if inode and _inode(path) == inode}
            if left:
                left -= {path for pid in psutil.pids() for path in _used(pid)}
            for path in left:
                _remove(Path(path))
            self._own = {}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _candidates() -> Found:
    """What might be a server's."""
    paths = [*Path(_SHARED).glob("*"), *Path("/tmp").glob("folder??????")]
    return {str(path): inode for path in paths if (inode := _inode(str(path)))}


def _used(pid: int) -> Found:
    """What a process uses."""
    found: Found = {}
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        found |= {path: int(inode) for inode, path in _WRITABLE.findall(maps)}
    with contextlib.suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        folders = {match[0] for each in arguments if (match := _FOLDER.match(each))}
        found |= {folder: _inode(folder) for folder in folders}
    return found


def _inode(path: str) -> int:
    """The inode of a file or folder of this user's; 0 for any other, a link too."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        is_own = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
        return found.st_ino if is_own else 0
    return 0
