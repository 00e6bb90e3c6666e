"""What a job's processes hold outside of its folder: TCP ports they listen on, and files of shared memory.

A port or a file is the job's if one of its processes was seen to have it open or mapped, so what other processes of the
machine do is not counted. What a process holds only between two looks is not seen. Takes Linux's /proc.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_SHARED = "/dev/shm/"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LISTENS = "0A"
"""The state of a socket that listens, in the tables of /proc/net."""


class Held:
    """What has been seen of one job."""

    def __init__(self) -> None:
        self._sockets: set[str] = set()
        """Inodes, which the kernel does not give to other sockets while these are open."""
        self._files: set[Path] = set()

    def look(self, pids: Iterable[int]) -> None:
        """Take in what the job's processes hold now."""
        listening = _listening()
        for pid in pids:
            for name in _opened(pid):
                if (found := _SOCKET.fullmatch(name)) and found[1] in listening:
                    self._sockets.add(found[1])
                elif name.startswith(_SHARED):
                    self._files.add(Path(name))

    def left(self) -> list[str]:
        """What of it is still there: sockets that listen, whoever has them now, and files."""
        ports = [f"port {port}" for inode, port in _listening().items() if inode in self._sockets]
        return sorted(ports) + sorted(str(path) for path in self._files if path.exists())


def _listening() -> dict[str, int]:
    """The ports of this machine's TCP sockets that listen, by inode."""
    found = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTENS:
                    found[inode] = int(local.rpartition(":")[2], 16)
    return found


def _opened(pid: int) -> Iterator[str]:
    """What its descriptors are, and the files that it has mapped; nothing if it has ended, or is another user's."""
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it has just been closed
                yield str(descriptor.readlink())
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            if _SHARED in line:
                yield _SHARED + line.partition(_SHARED)[2]
