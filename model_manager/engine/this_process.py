"""Requests of an engine's process to the kernel: to end with the process that started it, and to take memory back.

What a start touches and steps do not need is given back; what is the fork server's is told. torch links CUDA's
libraries where there is no GPU too, some 200 MB of them; a page that is needed after all is read again from the page
cache. Only on Linux, where mappings can be looked at; elsewhere nothing is given back.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_MADV_DONTNEED = 4
_END = "0-0 ---p 0 0:0 0 "
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ +(/.*)?")


def die_with_parent(name: bytes) -> None:
    """Ignore Ctrl-C, and die with the parent.

    Ctrl-C reaches the whole process group, but the manager decides what it means. If the thread that started this
    process ends in any way, so does this process (on Linux; elsewhere when the pipe that it reads closes). `name`, at
    most 15 bytes, is what top shows.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        set_parent_death_signal, set_name = 1, 15
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        libc.prctl(set_name, name, 0, 0, 0)


def give_back(smaps: Path = Path("/proc/self/smaps")) -> int:
    """Returns the bytes of mapped files that were offered to the kernel."""
    if not smaps.is_file():
        return 0
    if hasattr(_libc(), "malloc_trim"):
        _libc().malloc_trim(0)
    return sum(size for start, size in unchanged_libraries(smaps.read_text()) if _is_given_back(start, size))


def give_back_pages(address: int, size: int, page_size: int = mmap.PAGESIZE) -> None:
    """Give the whole pages of some bytes of anonymous memory back to the kernel. They read as zeros from then on, and
    take memory again once they are written. Only on Linux; elsewhere nothing happens.
    """
    first, end = -(-address // page_size) * page_size, (address + size) // page_size * page_size
    if sys.platform != "linux" or first >= end:
        return
    if not _is_given_back(first, end - first):
        raise OSError(ctypes.get_errno(), "madvise(MADV_DONTNEED)")


def _is_given_back(address: int, size: int) -> bool:
    """Give whole pages back to the kernel; False, with ctypes' errno, if it does not take them."""
    return bool(_libc().madvise(address, size, _MADV_DONTNEED) == 0)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def unchanged_libraries(smaps: str) -> Iterator[tuple[int, int]]:
    """Address and bytes of libraries' parts that nobody may write and nobody has written: their pages equal their
    file's. What was written, as the linker does before it forbids it, is anonymous, in memory or swapped out.
    """
    start = end = 0
    for line in [*smaps.splitlines(), _END]:
        mapping = _MAPPING.match(line)
        if mapping:
            if end:
                yield start, end - start
            is_library = ".so" in (mapping[4] or "") and "w" not in mapping[3]
            start, end = (int(mapping[part], 16) for part in (1, 2)) if is_library else (0, 0)
        elif line.startswith(("Anonymous:", "Swap:")) and int(line.split()[1]):
            end = 0


def shared_with_fork_server(rollup: Path = Path("/proc/self/smaps_rollup")) -> int:
    """Bytes of what the fork server made (fork_server.py) and this process has not changed; 0 if it was not forked.

    They count as the fork server's. To read them takes 20 ms a GB, so this is for once, after the model is loaded.
    """
    if not rollup.is_file():
        return 0
    shared = re.search(r"^Shared_Dirty: +(\d+) kB", rollup.read_text(), re.MULTILINE)
    return int(shared[1]) * 1024 if shared else 0
