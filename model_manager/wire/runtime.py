"""The folder in which a machine's processes find their one manager: its lock, its socket and its log.

Whoever holds the lock is the manager, or is starting it; the kernel frees it however that process ends. A holder that
stands still, and that nobody here can kill, is fenced: its lock file says so and goes, and the next holder has a new
one. Knows nothing of what is said over the socket.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import socket
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from .errors import ConfigError
from .job_progress import sweep_jobs

_LONGEST_ADDRESS = 100
"""Bytes; the kernel takes 107 for a Unix socket's address."""
_FENCED = b"fenced"
"""What the lock file of a fenced holder says to it; as no name of a path has it any more."""
_CHANGED_WITHIN = 200
"""Hundredths of a second that one waits for another who changes the folder."""
BACKLOG = 1024
"""Connections that may wait to be accepted."""


class RuntimeDir:
    """One user's folder for one manager; made when needed, gone when the manager has ended.

    A folder that was there before stays. Who made it is told by its sticky bit, which has no effect in a folder of one
    user's: the process that ends last is often not the one that began.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.lock = self.path / "manager.lock"
        self.socket = self.path / "manager.sock"
        self.log = self.path / "manager.log"

    def prepare(self) -> None:
        """Make the folder (mode 1700) unless it is there; raises ConfigError as `check` does."""
        try:
            self.path.mkdir(mode=0o700 | stat.S_ISVTX)
        except FileExistsError:
            self.check()
        except OSError as error:
            raise ConfigError(f"MILLRACE_RUNTIME_DIR={self.path}: cannot be made: {error.strerror}") from None

    def check(self) -> bool:
        """Whether the folder is there; raises ConfigError if others can reach into it, or it is no folder."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(found.st_mode):
            raise ConfigError(f"MILLRACE_RUNTIME_DIR={self.path}: takes a folder, not a link or a file")
        if found.st_uid != os.geteuid():
            raise ConfigError(
                f"MILLRACE_RUNTIME_DIR={self.path}: takes a folder of this user, it is user {found.st_uid}'s"
            )
        if found.st_mode & 0o077:
            takes = f"takes a folder of mode 700, it has {stat.S_IMODE(found.st_mode):o}"
            raise ConfigError(f"MILLRACE_RUNTIME_DIR={self.path}: {takes}: chmod 700 {shlex.quote(str(self.path))}")
        return True

    def try_lock(self) -> int | None:
        """A descriptor that holds the lock, or None when someone else does or the folder went away meanwhile. Raises
        ConfigError if something else has the lock's name.
        """
        try:
            fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(self.lock, error) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_lock(fd):
                os.pwrite(fd, uuid.uuid4().hex.encode(), 0)
                return fd
        except BlockingIOError:
            pass
        os.close(fd)
        return None

    def make_room(self) -> int:
        """Remove the socket of a manager before, and empty its log: a descriptor of the log, for the manager to come.
        Only the lock's holder may call this. Raises ConfigError if something else has the name of one of the two.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        path = self.socket
        try:
            path.unlink(missing_ok=True)
            path = self.log
            return os.open(path, flags, 0o600)
        except OSError as error:
            raise self._unusable(path, error) from None

    def _unusable(self, path: Path, error: OSError) -> ConfigError:
        """What is wrong with one of the folder's files."""
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link"}
        try:
            kind = kinds.get(stat.S_IFMT(path.lstat().st_mode))
        except OSError:
            kind = None
        found = (
            f"takes a file of millrace's own, it is {kind}: remove it" if kind else f"cannot be used: {error.strerror}"
        )
        return ConfigError(f"MILLRACE_RUNTIME_DIR={self.path}: {path.name} {found}")

    def _is_lock(self, fd: int) -> bool:
        """A manager that ends removes the file before it lets go: what was locked may be no longer what others lock."""
        try:
            return os.path.samestat(os.fstat(fd), self.lock.lstat())
        except FileNotFoundError:
            return False

    def is_fenced(self, fd: int) -> bool:
        """Whether this file, which was the lock, says so, or others lock another one. One that is gone has no successor
        yet.
        """
        try:
            return os.pread(fd, len(_FENCED), 0) == _FENCED or not os.path.samestat(os.fstat(fd), self.lock.lstat())
        except OSError:  # also what a file system answers that fails for a while
            return False

    def holder(self) -> bytes | None:
        """What names the lock's latest holder, if there is one: each has its own name, also in a file of the same."""
        try:
            return self.lock.read_bytes()
        except OSError:
            return None

    def fence(self, holder: bytes | None) -> None:
        """Let another manager begin beside this holder, which stands still: when it goes on, it sees that it is fenced,
        and ends. Does nothing if it is not the holder any more, or if the folder cannot be changed.
        """
        with contextlib.suppress(OSError), self._changing():
            if holder and self.holder() == holder:
                self.lock.write_bytes(_FENCED)
                for path in (self.socket, self.lock):
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Nobody else removes a holder's files meanwhile. Raises OSError if the folder is gone, or somebody who stands
        still is changing it.
        """
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for left in range(_CHANGED_WITHIN, -1, -1):
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not left:
                        raise
                    time.sleep(0.01)
            yield
        finally:
            os.close(folder)

    def listen(self, fd: int) -> socket.socket | None:
        """The manager's socket; None if `fd`, which was the lock, is fenced. A dead manager's socket is removed.

        Nobody is fenced between the check and the bind, so the socket of a successor is never replaced.
        """
        with contextlib.ExitStack() as changing:
            with contextlib.suppress(BlockingIOError):  # someone stands still in a change: nobody else fences either
                changing.enter_context(self._changing())
            return None if self.is_fenced(fd) else self._bound()

    def _bound(self) -> socket.socket:
        self.socket.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._address() as address:
                sock.bind(address)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
        return sock

    def connect(self) -> socket.socket | None:
        """A connection to the manager; None when nobody listens."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(None)  # Beam's gs:// client sets a default for the whole process
        try:
            with self._address() as address:
                sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EAGAIN):
                return None
            raise

    @contextlib.contextmanager
    def _address(self) -> Iterator[str]:
        """The socket's address; where the path is too long for one, through a descriptor of the folder (Linux)."""
        if len(os.fsencode(self.socket)) <= _LONGEST_ADDRESS:
            yield str(self.socket)
            return
        folder = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{self.socket.name}"
        finally:
            os.close(folder)

    def remove(self, fd: int) -> None:
        """Remove what a manager leaves, the lock last. `fd` holds the lock; if others lock another file, all that is
        there is the next holder's.
        """
        with contextlib.suppress(OSError), self._changing():
            if not self.is_fenced(fd):
                for path in (self.socket, self.log, *([self.lock] if self._is_lock(fd) else [])):
                    path.unlink(missing_ok=True)
                sweep_jobs(self.path)
                self.leave()

    def leave(self) -> None:
        """Remove the folder if millrace made it, and nothing is left in it."""
        with contextlib.suppress(OSError):  # a running job's or someone else's file, or the next manager's lock
            if self.path.lstat().st_mode & stat.S_ISVTX:
                self.path.rmdir()

    def sweep(self) -> None:
        """Remove what a killed manager and killed jobs left; does nothing while a manager lives or is starting."""
        fd = self.try_lock()
        if fd is not None:
            try:
                self.remove(fd)
            finally:
                os.close(fd)
