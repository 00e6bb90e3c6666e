"""The manager's folder: safe from others, one holder of the lock, nothing left."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.runtime import RuntimeDir


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeDir:
    made = RuntimeDir(tmp_path / "run")
    made.prepare()
    return made


@contextlib.contextmanager
def listening(runtime: RuntimeDir, lock: int) -> Iterator[None]:
    """The holder of the lock listens."""
    sock = runtime.listen(lock)
    assert sock is not None
    with sock:
        yield


def test_the_folder_is_this_users_alone(runtime: RuntimeDir) -> None:
    assert runtime.path.stat().st_mode & 0o777 == 0o700
    runtime.prepare()


def test_a_link_a_file_and_an_open_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o750)
    for name in ("link", "file", "open"):
        with pytest.raises(ConfigError, match="MILLRACE_RUNTIME_DIR"):
            RuntimeDir(tmp_path / name).prepare()
    with pytest.raises(ConfigError, match=f"it has 750: chmod 700 {tmp_path / 'open'}$"):
        RuntimeDir(tmp_path / "open").check()
    with pytest.raises(ConfigError, match="cannot be made"):
        RuntimeDir(tmp_path / "no" / "where").prepare()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")
def test_another_users_folder_is_refused(runtime: RuntimeDir) -> None:
    os.chown(runtime.path, 65534, 65534)
    with pytest.raises(ConfigError, match="65534"):
        runtime.prepare()


def test_one_has_the_lock_at_a_time(runtime: RuntimeDir) -> None:
    first = runtime.try_lock()
    assert first is not None
    assert runtime.try_lock() is None
    os.close(first)
    second = runtime.try_lock()
    assert second is not None
    os.close(second)


def test_a_lock_that_was_removed_meanwhile_is_not_the_lock(runtime: RuntimeDir) -> None:
    waiting = os.open(runtime.lock, os.O_RDWR | os.O_CREAT)
    runtime.lock.unlink()
    assert not runtime._is_lock(waiting)
    os.close(waiting)


def test_sweeping_removes_what_is_left_but_not_what_is_held(runtime: RuntimeDir) -> None:
    lock = runtime.try_lock()
    assert lock is not None
    runtime.log.touch()
    with listening(runtime, lock):
        pass
    runtime.sweep()
    assert runtime.socket.exists()
    os.close(lock)
    runtime.sweep()
    assert not runtime.path.exists()


def test_a_folder_that_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    mine, made = RuntimeDir(tmp_path / "mine"), RuntimeDir(tmp_path / "made")
    for folder in (mine, made):
        folder.prepare()
        folder.log.touch()
        held = folder.try_lock()
        assert held is not None
        RuntimeDir(folder.path).remove(held)
        os.close(held)
    assert (mine.path.exists(), [*mine.path.iterdir()], made.path.exists()) == (True, [], False)


def test_a_fenced_holder_removes_nothing_of_the_next_one(runtime: RuntimeDir) -> None:
    fenced, name = runtime.try_lock(), runtime.holder()
    assert fenced is not None
    runtime.fence(name)
    assert runtime.is_fenced(fenced), "though nobody has its place yet"
    holder = runtime.try_lock()
    assert holder is not None
    assert runtime.is_fenced(fenced)
    with listening(runtime, holder):
        for _ in range(2):  # nor does a client that learns of it late
            runtime.fence(name)
            runtime.remove(fenced)
            assert not runtime.is_fenced(holder)
            assert runtime.socket.exists()
    runtime.remove(holder)
    assert not runtime.path.exists()
    runtime.fence(name)
    runtime.remove(holder)
    for fd in (fenced, holder):
        os.close(fd)


def test_a_fenced_holder_that_comes_to_listen_leaves_the_socket_of_the_next_one(runtime: RuntimeDir) -> None:
    fenced = runtime.try_lock()
    assert fenced is not None
    runtime.fence(runtime.holder())
    holder = runtime.try_lock()
    assert holder is not None
    with listening(runtime, holder):
        inode = runtime.socket.stat().st_ino
        assert runtime.listen(fenced) is None
        assert runtime.socket.stat().st_ino == inode
    for fd in (fenced, holder):
        os.close(fd)


def test_nobody_is_fenced_between_the_look_at_the_lock_and_the_socket(
    runtime: RuntimeDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.model_manager.wire.runtime._CHANGED_WITHIN", 0)
    held, name = runtime.try_lock(), runtime.holder()
    assert held is not None
    other, is_fenced = RuntimeDir(runtime.path), runtime.is_fenced

    def fenced_after_the_look(fd: int) -> bool:
        was_fenced = is_fenced(fd)
        other.fence(name)
        return was_fenced

    monkeypatch.setattr(runtime, "is_fenced", fenced_after_the_look)
    with listening(runtime, held):
        assert runtime.holder() == name
    os.close(held)


def test_a_holder_whose_file_was_removed_is_not_fenced_before_another_has_its_place(runtime: RuntimeDir) -> None:
    held = runtime.try_lock()
    assert held is not None
    runtime.lock.unlink()
    assert not runtime.is_fenced(held)
    other = runtime.try_lock()
    assert runtime.is_fenced(held)
    for fd in (held, other):
        assert fd is not None
        os.close(fd)


def test_who_locks_the_file_of_a_killed_holder_is_not_fenced_in_its_place(runtime: RuntimeDir) -> None:
    killed, name = runtime.try_lock(), runtime.holder()
    assert killed is not None
    os.close(killed)
    successor = runtime.try_lock()
    assert successor is not None
    runtime.fence(name)
    assert not runtime.is_fenced(successor)
    assert runtime.holder() is not None
    os.close(successor)


def test_nobody_waits_for_one_who_stands_still_while_he_changes_the_folder(runtime: RuntimeDir) -> None:
    stands_still = os.open(runtime.path, os.O_RDONLY)
    fcntl.flock(stands_still, fcntl.LOCK_EX)
    held, name = runtime.try_lock(), runtime.holder()
    assert held is not None
    runtime.fence(name)
    with listening(runtime, held):
        runtime.remove(held)
        assert runtime.holder() == name
    os.close(stands_still)
    os.close(held)


def test_what_else_has_a_files_name_is_told_in_one_sentence(runtime: RuntimeDir) -> None:
    runtime.lock.mkdir()
    for use in (runtime.try_lock, runtime.sweep):
        with pytest.raises(
            ConfigError, match=r"manager.lock takes a file of millrace's own, it is a folder: remove it$"
        ):
            use()
    runtime.lock.rmdir()
    runtime.log.symlink_to("elsewhere")
    with pytest.raises(ConfigError, match=f"^MILLRACE_RUNTIME_DIR={runtime.path}: manager.log takes .* is a link:"):
        runtime.make_room()
    runtime.socket.mkdir()
    with pytest.raises(ConfigError, match=r"manager.sock takes .*, it is a folder"):
        runtime.make_room()


@pytest.mark.parametrize("depth", [1, 5])
def test_a_socket_is_reached_however_long_its_path_is(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["x" * 40] * depth)
    folder.mkdir(parents=True)
    runtime = RuntimeDir(folder / "run")
    runtime.prepare()
    assert runtime.connect() is None
    lock = runtime.try_lock()
    assert lock is not None
    with listening(runtime, lock):
        sock = runtime.connect()
        assert sock is not None
        sock.close()
    assert runtime.connect() is None
    os.close(lock)
