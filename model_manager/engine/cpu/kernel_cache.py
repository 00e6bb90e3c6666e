"""Compiled kernels on disk, since compiling takes some 15 s. Knows no kernel.

They lie in this user's cache folder under a digest of their sources, each file with its checksum: what is damaged is
removed, and compiled and kept again. Where the folder cannot be written, what it has is used all the same. Processes
that start at once take turns, so that each kernel is compiled once. Where the folder cannot be locked, several may
compile it; no file of code is written by two of them.
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
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numba
from numba import cfunc, types
from numba.core.ccallback import CFunc
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
        with _lock_of(folder).taken() as is_taken:
            if is_taken:
                return _kept(function, folder)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        why = getattr(error, "strerror", None) or error
        _tell(f"{folder.parent}: compiled kernels are not kept for the next start, which takes longer: {why}")
        return _compiled_elsewhere(function, folder)
    _tell(f"{folder}: kernels are compiled anew, as another process keeps its lock")
    return _uncached(function)


def prepare() -> None:
    """What Numba would do at the first kernel, half a second: list the functions that it can compile."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


class _Lock:
    """A folder's lock, as the kernels of this process take it one after the other."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _LOCK
        self._is_given_up = False
        """Others have kept it for LOCKED_WITHIN: further kernels take it if it is free."""

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Hold the lock, which the system frees if this process dies. False if others have kept it for LOCKED_WITHIN,
        now or before an earlier kernel; True without it where nothing can be locked.
        """
        with contextlib.ExitStack() as stack:
            try:
                is_taken = self._take(stack.enter_context(self._opened()))
            except OSError as error:
                why = error.strerror or error
                _tell(f"{self._path}: cannot be locked, so processes that start at once may all compile: {why}")
                is_taken = True
            yield is_taken

    def _opened(self) -> IO[bytes]:
        try:
            return self._path.open("ab")  # NFS locks no file that is only read
        except PermissionError:
            return self._path.open("rb")  # another user's, in a folder of both

    def _take(self, file: IO[bytes]) -> bool:
        deadline = time.monotonic() + LOCKED_WITHIN
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._is_given_up or time.monotonic() > deadline:
                    self._is_given_up = True
                    return False
                time.sleep(_POLL)
            else:
                self._is_given_up = False
                return True


@functools.cache
def _lock_of(folder: Path) -> _Lock:
    """One in a process."""
    return _Lock(folder)


def _kept(function: Callable[[int], None], folder: Path) -> Any:
    """The function as the folder has it, or compiled and kept there. With the folder's lock, if there is one."""
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
    """What cfunc(cache=True) makes. Numba numbers the files of one function's code, and two processes that know nothing
    of each other give the same number: the second would run the first one's code. So this process's are in their names.
    """
    with _numba_cache(folder), _no_collections():
        made: Any = CFunc(
            function, (_SIGNATURE.args, _SIGNATURE.return_type), locals={}, options={"error_model": "numpy"}
        )
        made.enable_caching()
        files = made._cache._cache_file
        files._data_name_pattern = files._data_name_pattern.replace("{number", uuid.uuid4().hex + ".{number")
        made.compile()
        return made


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
