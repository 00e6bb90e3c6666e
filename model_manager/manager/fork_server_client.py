"""The fork server (engine/fork_server.py) as the manager sees it: started once, asked for inference processes.

Knows no model. Whoever gets no process here starts one anew, which takes seconds longer and does the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from typing import IO

from .fork_server_process import ForkServerProcess, start_fork_server

log = logging.getLogger(__name__)

_READY_WITHIN = 60.0
"""Seconds for the fork server to import torch, on a machine that may be very busy."""
_FORKED_WITHIN = 60.0
"""Seconds for a fork: the fork server may just import what only some models need."""
_MOST_FAILURES = 2
_LARGEST = 64
"""Bytes of a message of the fork server: a process id."""
_PR_SET_CHILD_SUBREAPER = 36


class ForkedProcess:
    """A process that the fork server made and that is this process's child; what is used of subprocess.Popen."""

    def __init__(self, pid: int, stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stderr = stderr
        self.returncode: int | None = None

    def check_parent(self) -> None:
        """Raises OSError, and ends the process, if the kernel gave it to another parent: its end would not be known."""
        try:
            self._reap(os.WNOHANG)
        except ChildProcessError:
            os.kill(self.pid, signal.SIGKILL)
            raise OSError("what it forks is not given to the manager") from None

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs. 0, as in subprocess, if somebody else took it."""
        try:
            self._reap(os.WNOHANG)
        except ChildProcessError:
            self.returncode = 0
        return self.returncode

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        try:
            self._reap(0)
        except ChildProcessError:
            self.returncode = 0
        assert self.returncode is not None
        return self.returncode

    def _reap(self, options: int) -> None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """Holds at most one process that forks engines. It starts when it is first needed, and again after it was killed.

    If two processes in a row end before they are ready (an import fails), none is started: engines say what is wrong.
    """

    def __init__(self, started: ForkServerProcess | None = None) -> None:
        """`started`: the process, if there is one already."""
        self._running = started
        self._is_ready = False
        self._failures = 0
        """How many processes in a row ended before they were ready."""
        self._lock = asyncio.Lock()

    def start(self) -> ForkServerProcess:
        """The process, started if there is none; raises OSError. Only from the main thread (`start_fork_server`)."""
        if self._is_ready and self._running is not None and self._running.process.poll() is not None:
            self.close()
        if self._running is None:
            self._running = start_fork_server()
        return self._running

    async def fork(self, model: str, variables: Mapping[str, str]) -> tuple[ForkedProcess, socket.socket] | None:
        """An inference process with these variables beside the manager's, and our end of the socket to it.

        None if there is no fork server. One that is killed as it is asked is replaced, once. Raises OSError if this
        process can open no further file.
        """
        told = json.dumps({"model": model, "variables": dict(variables)}).encode()
        async with self._lock:
            while self._failures < _MOST_FAILURES:
                was_ready = self._is_ready
                try:
                    with socket_pair() as (ours, theirs):  # others each time: the killed one may have forked
                        return await self._fork(told, theirs), ours
                except OSError as error:  # TimeoutError is one
                    if error.errno in (errno.EMFILE, errno.ENFILE):
                        raise  # the fork server is well, and has forked nothing
                    self._failures += not self._is_ready
                    self.close()
                    if was_ready and isinstance(error, ConnectionError):
                        continue
                    log.warning(
                        "engines start without what the fork server has imported: %s",
                        str(error) or "it gives no answer",
                    )
                    return None
            return None

    async def _fork(self, told: bytes, connection: socket.socket) -> ForkedProcess:
        fork_server = self.start().socket
        if not self._is_ready:
            await _hear(fork_server, _READY_WITHIN)
            self._is_ready, self._failures = True, 0
        reading, writing = os.pipe()
        stderr = os.fdopen(reading, "rb", 0)
        try:
            with _adopting_orphans():
                socket.send_fds(fork_server, [told], [connection.fileno(), writing])
                pid = int(await _hear(fork_server, _FORKED_WITHIN))
            if pid < 0:
                raise OSError("it cannot fork")
            forked = ForkedProcess(pid, stderr)
            forked.check_parent()
        except BaseException:
            stderr.close()
            raise
        finally:
            os.close(writing)
        return forked

    def close(self) -> None:
        """End the process. Those that it forked go on."""
        if self._running is not None:
            self._running.end()
        self._running, self._is_ready = None, False


async def _hear(fork_server: socket.socket, within: float) -> bytes:
    loop = asyncio.get_running_loop()
    message = await asyncio.wait_for(loop.sock_recv(fork_server, _LARGEST), within)
    if not message:
        raise ConnectionError("its process has ended")
    return message


@contextlib.contextmanager
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The manager's end, closed only if the block raises, and an engine's, closed in the end."""
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as unless_kept:
        unless_kept.callback(ours.close)
        yield ours, theirs
        unless_kept.pop_all()


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Within, processes that lose their parent become this process's children, if it is an ancestor."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the manager cannot adopt processes")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
