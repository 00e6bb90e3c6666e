"""A file that stands still for whoever opens it, as one on a network's file system may: the kernel lets them wait for
the holder of its lease, for 45 s (fcntl(2), "Leases").
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_SETSIG = 10
"""F_SETSIG, of fcntl.h: what the holder is sent."""


class Lease:
    """The only open file of its path; whoever opens another waits until `end`."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR)
        fcntl.fcntl(self._file, _SETSIG, signal.SIGURG)  # which does nothing
        fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def is_wanted(self) -> bool:
        """Whether somebody opens the file, or has opened it."""
        return fcntl.fcntl(self._file, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def truncate(self, size: int) -> None:
        """Cut the file off."""
        os.ftruncate(self._file, size)

    def end(self) -> None:
        """Let those go on that wait."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@contextlib.contextmanager
def leased(path: Path) -> Iterator[Lease]:
    """A lease of the file, ended at the latest with the block."""
    lease = Lease(path)
    try:
        yield lease
    finally:
        lease.end()
