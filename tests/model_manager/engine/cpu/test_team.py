"""Kernels are compiled once for all starts and run in every thread of the team."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import pytest
import torch  # noqa: F401 - brings the OpenMP runtime
from numba.core.caching import IndexDataCacheFile
from numba.core.ccallback import CFunc

from millrace.model_manager.engine.cpu import kernel_cache
from millrace.model_manager.engine.cpu.team import Kernel, Team
from millrace.model_manager.engine.cpu.vector_ops import fetch_add
from tests.model_manager.engine.cpu.small_kernels import ALL

ROOT = Path(__file__).parents[4]


def _count(address: int) -> None:
    fetch_add(address)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.usefixtures("cache")
def test_a_kernel_runs_once_in_every_thread(size: int) -> None:
    counter = np.zeros(1, np.int64)
    Team(size).run(Kernel(_count, [Path(__file__)]), counter.ctypes.data)
    assert counter[0] == size


def test_compiled_code_is_kept_under_a_digest_of_its_sources(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    for text in ("first", "second", "first"):
        source.write_text(text)
        Kernel(_count, [source])
    assert len(list((cache / "millrace" / "kernels").iterdir())) == 2
    assert len(list(cache.rglob("*.nbc"))) == 2


class _Header(ctypes.Structure):
    """Which capabilities capget(2) and capset(2) are about."""

    _fields_: ClassVar = [(name, ctypes.c_uint32) for name in ("version", "pid")]


@contextmanager
def _as_no_root() -> Iterator[None]:
    """Modes of files hold for root too: the thread is without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    libc, header, before = ctypes.CDLL(None), _Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(ctypes.byref(header), before) == 0
    fewer = (ctypes.c_uint32 * 6)(*before)
    fewer[0] &= ~6
    assert libc.capset(ctypes.byref(header), fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(ctypes.byref(header), before) == 0


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    """The folder cannot be written within."""
    inside = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in inside:
        path.chmod(0o555)
    try:
        with _as_no_root():
            yield
    finally:
        for path in inside:
            path.chmod(0o755)


def test_damaged_code_is_told_and_compiled_and_kept_again(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    Kernel(_count, [Path(__file__)])
    (code,) = cache.rglob("*.nbc")
    whole = code.read_bytes()
    for damaged in (whole[:100], b"garbage", whole[:-500] + bytes(500)):
        code.write_bytes(damaged)
        counter = np.zeros(1, np.int64)
        Team(1).run(Kernel(_count, [Path(__file__)]), counter.ctypes.data)
        assert counter[0] == 1
        assert caplog.text.count(f"{code}: is damaged") == 1
        assert len(code.read_bytes()) == len(whole)
    checksum = code.with_name(code.name + ".sha256")
    checksum.write_bytes(b"\xff\xfe")
    Kernel(_count, [Path(__file__)])
    assert checksum.read_text() == hashlib.sha256(code.read_bytes()).hexdigest()


def test_a_folder_that_cannot_be_written_is_told_once_and_its_code_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Kernel(_count, [Path(__file__)])
    (kept,) = (cache / "millrace" / "kernels").iterdir()
    monkeypatch.setattr(CFunc, "_compile_uncached", lambda _: pytest.fail("compiled again"))
    with _read_only(kept):
        counter = np.zeros(1, np.int64)
        for _ in range(2):
            Team(1).run(Kernel(_count, [Path(__file__)]), counter.ctypes.data)
    assert counter[0] == 2
    assert caplog.text.count(f"{kept.parent}: compiled kernels are not kept for the next start") == 1


def test_without_a_folder_to_keep_it_in_a_kernel_still_runs_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    counter = np.zeros(1, np.int64)
    Team(1).run(Kernel(_count, [Path(__file__)]), counter.ctypes.data)
    assert counter[0] == 1
    assert "compiled kernels are not kept" in caplog.text


def test_without_an_openmp_runtime_the_team_is_one_thread_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millrace.model_manager.engine.cpu.team._loaded_library", lambda _name: None)
    assert Team(2).size == 1
    assert "attention runs on one thread" in caplog.text


_STARTS = """
import sys
from pathlib import Path
from numba.core.caching import IndexDataCacheFile
from numba.core.ccallback import CFunc
from millrace.model_manager.engine.cpu.team import Kernel
import tests.model_manager.engine.cpu.small_kernels as kernels

compile, compiled = CFunc._compile_uncached, []
CFunc._compile_uncached = lambda self: compiled.append(self) or compile(self)
print("ready", flush=True)
sys.stdin.readline()
for kernel in kernels.ALL:
    Kernel(kernel, [Path(kernels.__file__)])
print(len(compiled))
"""


def test_processes_that_start_at_once_compile_each_kernel_once_and_take_none_for_damaged(cache: Path) -> None:
    command, pipes = [sys.executable, "-c", _STARTS], dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    starts = [subprocess.Popen(command, cwd=ROOT, text=True, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    for start in starts:
        assert start.stdout.readline() == "ready\n"
    for start in starts:
        start.stdin.write("\n")
        start.stdin.flush()
    told = [start.communicate() for start in starts]
    assert [errors for _, errors in told] == ["", ""]
    assert sum(int(compiled) for compiled, _ in told) == len(ALL)
    for code in cache.rglob("*.nb[ci]"):
        assert code.with_name(code.name + ".sha256").read_text() == hashlib.sha256(code.read_bytes()).hexdigest()


class Holder:
    """Another process that keeps the lock, and the clock: it frees the lock when it has kept it for `seconds`."""

    def __init__(self, lock: IO[str]) -> None:
        self.now = 0.0
        self.sleeps = 0
        self._lock = lock
        self._until = 0.0

    def keep(self, seconds: float) -> None:
        """Take the lock."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._until = self.now + seconds

    def monotonic(self) -> float:
        """See time."""
        return self.now

    def sleep(self, _seconds: float) -> None:
        """See time; ten seconds pass."""
        self.now += 10
        self.sleeps += 1
        if self.now >= self._until:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


def test_each_kernel_waits_for_others_as_long_as_the_first_unless_one_has_waited_in_vain(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Kernel(_count, [Path(__file__)])
    (lock,) = cache.rglob("lock")
    sleeps = []
    with lock.open() as held:
        holder = Holder(held)
        monkeypatch.setattr(kernel_cache, "time", holder)
        for seconds in (80, 80, 80, 1000, 1000):
            holder.keep(seconds)
            before = holder.sleeps
            Kernel(_count, [Path(__file__)])
            sleeps.append(holder.sleeps - before)
            assert ("another process keeps its lock" in caplog.text) == (seconds == 1000)
    assert sleeps == [8, 8, 8, 13, 0]


def test_a_kernel_is_compiled_anew_where_another_process_keeps_the_lock_for_ever(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel_cache, "LOCKED_WITHIN", 0.1)
    Kernel(_count, [Path(__file__)])
    (lock,) = cache.rglob("lock")
    before = sorted(cache.rglob("*"))
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        counter = np.zeros(1, np.int64)
        for _ in range(2):
            Team(1).run(Kernel(_count, [Path(__file__)]), counter.ctypes.data)
    assert counter[0] == 2
    assert caplog.text.count("another process keeps its lock") == 1
    assert sorted(cache.rglob("*")) == before


def _counting(times: int) -> Callable[[int], None]:
    def count(address: int) -> None:
        for _ in range(times):
            fetch_add(address)

    return count


def _counted(kernel: Kernel) -> int:
    counter = np.zeros(1, np.int64)
    Team(1).run(kernel, counter.ctypes.data)
    return int(counter[0])


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has none, as NFS without its lock daemon."""

    def refuse(_file: object, _what: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("without_locks")
def test_where_nothing_can_be_locked_kernels_are_kept_and_the_log_says_once_that_several_may_compile(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert _counted(Kernel(_count, [Path(__file__)])) == 1
    assert len(list(cache.rglob("*.nbc.sha256"))) == 1
    monkeypatch.setattr(CFunc, "_compile_uncached", lambda _: pytest.fail("compiled again"))
    assert _counted(Kernel(_count, [Path(__file__)])) == 1
    assert caplog.text.count("lock: cannot be locked") == 1
    assert "not kept" not in caplog.text


@pytest.mark.parametrize("mode", [0o444, 0o000], ids=["readable", "unreadable"])
def test_a_folder_in_which_another_user_made_the_lock_keeps_kernels(
    cache: Path, mode: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As that user's umask leaves it: the folder is writable for a group, the lock is not."""
    kept = kernel_cache._folder([Path(__file__)])
    kept.mkdir(parents=True)
    (kept / "lock").touch()
    (kept / "lock").chmod(mode)
    with _as_no_root():
        assert _counted(Kernel(_count, [Path(__file__)])) == 1
        monkeypatch.setattr(CFunc, "_compile_uncached", lambda _: pytest.fail("compiled again"))
        assert _counted(Kernel(_count, [Path(__file__)])) == 1
    assert len(list(cache.rglob("*.nbc"))) == 1
    assert ("cannot be locked" in caplog.text) == (mode == 0)


@pytest.mark.usefixtures("cache", "without_locks")
def test_two_processes_that_write_at_once_without_a_lock_leave_each_kernel_its_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second, which saw no file of the first, writes its own between the first one's index and code."""
    twice, thrice = _counting(2), _counting(3)
    save = IndexDataCacheFile._save_data

    def save_after_the_other(files: Any, name: str, data: object) -> None:
        with monkeypatch.context() as other:
            other.setattr(IndexDataCacheFile, "_save_data", save)
            other.setattr(IndexDataCacheFile, "_load_index", lambda _: {})
            Kernel(thrice, [Path(__file__)])
        save(files, name, data)

    with monkeypatch.context() as first:
        first.setattr(IndexDataCacheFile, "_save_data", save_after_the_other)
        Kernel(twice, [Path(__file__)])
    assert [_counted(Kernel(each, [Path(__file__)])) for each in (thrice, twice)] == [3, 2]
