"""Compiled kernels on disk, since compiling takes some 15 s. Knows no kernel.

They lie in this user's cache folder under a digest of their sources, each file with its checksum: what is damaged is
removed, and compiled and kept again. Where the folder cannot be written, what it has is used all the same. Processes
that start at once take turns, so that each kernel is compiled once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import hashlib
import logging
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numba
from numba import cfunc, types
from numba.core.registry import cpu_target

log = logging.getLogger(__name__)

_SIGNATURE = types.void(types.int64)
_SUM = ".sha256"
_LOCK = "lock"
LOCKED_WITHIN = 120.0
"""Seconds that a process waits for others before a kernel. They compile for seconds, on an idle machine."""
_POLL = 0.05


def compiled(function: Callable[[int], None], sources: Sequence[Path]) -> Any:
    """A C function of the Python function, which is made of `sources`."""
    folder = _folder(sources)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # Numba would write beside the sources, without a word
        with (folder / _LOCK).open("ab") as lock:  # the kernel frees it if this process dies
            if _take_lock(lock):
                return _kept(function, folder)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        why = getattr(error, "strerror", None) or error
        _tell(f"{folder.parent}: compiled kernels are not kept for the next start, which takes longer: {why}")
        return _compiled_elsewhere(function, folder)
    _tell(f"{folder}: kernels are compiled anew, as another process has kept its lock for {LOCKED_WITHIN:g} s")
    return _uncached(function)


def prepare() -> None:
    """What Numba would do at the first kernel, half a second: list the functions that it can compile."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def _take_lock(lock: IO[bytes]) -> bool:
    """Take the lock until its file is closed. False if others have kept it for LOCKED_WITHIN, now or before an earlier
    kernel.
    """
    deadline = time.monotonic() + LOCKED_WITHIN
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if lock.name in _given_up() or time.monotonic() > deadline:
                _given_up().add(lock.name)
                return False
            time.sleep(_POLL)
        else:
            _given_up().discard(lock.name)
            return True


@functools.cache
def _given_up() -> set[str]:
    """Locks that other processes have kept for LOCKED_WITHIN: further kernels take them if they are free."""
    return set()


def _kept(function: Callable[[int], None], folder: Path) -> Any:
    """The function as the folder has it, or compiled and kept there. Only with the folder's lock."""
    _remove_damaged_once(folder, _state(folder))
    before = _state(folder)
    made = _cached(function, folder)
    if _state(folder) != before:
        _keep_sums(folder)
    return made


def _compiled_elsewhere(function: Callable[[int], None], folder: Path) -> Any:
    """The function, compiled with the kernels in a copy of the folder: Numba reads no folder that it cannot write."""
    try:
        with tempfile.TemporaryDirectory(prefix="millrace-kernels-") as name:
            copy = Path(name) / folder.name
            if folder.is_dir():
                ignored = shutil.ignore_patterns(_LOCK)
                shutil.copytree(folder, copy, copy_function=shutil.copyfile, ignore=ignored)
            for each in (copy, *copy.rglob("*")):
                each.chmod(0o700)
            _remove_damaged(copy)
            return _cached(function, copy)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError):
        return _uncached(function)


def _uncached(function: Callable[[int], None]) -> Any:
    return cfunc(_SIGNATURE, error_model="numpy")(function)


def _cached(function: Callable[[int], None], folder: Path) -> Any:
    with _numba_cache(folder), _no_collections():
        return cfunc(_SIGNATURE, cache=True, error_model="numpy")(function)


def _folder(sources: Sequence[Path]) -> Path:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "millrace" / "kernels" / digest.hexdigest()[:16]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.nb[ci]"))


def _state(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Name, inode, size and time of each file: what differs if one was written, damaged or removed."""
    found = []
    for each in os.scandir(folder):
        if each.is_dir():
            for file in os.scandir(each):
                with contextlib.suppress(FileNotFoundError):  # an older version has removed it
                    status = file.stat()
                    found.append((file.path, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))


@functools.lru_cache(maxsize=1)
def _remove_damaged_once(folder: Path, _files_now: object) -> None:
    """Remove damaged files once per start, not for each kernel, unless a file has changed meanwhile."""
    _remove_damaged(folder)


def _sum_of(file: Path) -> str:
    status = file.stat()
    return _sum_as_of(file, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.cache
def _sum_as_of(file: Path, _ino: int, _size: int, _mtime_ns: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _is_whole(file: Path) -> bool:
    kept = file.with_name(file.name + _SUM)
    return kept.is_file() and kept.read_bytes() == _sum_of(file).encode()


def _remove_damaged(folder: Path) -> None:
    """Remove each file that does not match its checksum, and each that has none: a process that was killed as it wrote,
    or an older version, leaves such files.
    """
    for file in _files(folder):
        if not _is_whole(file):
            if file.with_name(file.name + _SUM).is_file():
                _tell(f"{file}: is damaged; the kernel is compiled again, which takes some seconds")
            file.unlink(missing_ok=True)


def _keep_sums(folder: Path) -> None:
    for file in _files(folder):
        with contextlib.suppress(FileNotFoundError):  # an older version has removed it
            if not _is_whole(file):
                written = file.with_name(f"{file.name}{_SUM}.{os.getpid()}")
                written.write_text(_sum_of(file))
                written.replace(file.with_name(file.name + _SUM))


@functools.cache
def _tell(warning: str) -> None:
    """Once, although there are several kernels."""
    log.warning("%s", warning)


@contextmanager
def _no_collections() -> Iterator[None]:
    """The garbage collector would look again and again at what a compilation makes: an eighth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _numba_cache(folder: Path) -> Iterator[None]:
    """Numba's own cache key is the file of the outermost function; it misses changes in the files that this calls."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before
