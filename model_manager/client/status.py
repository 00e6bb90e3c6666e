"""Reads the status of this machine's manager, and stops it. An observer neither starts a manager nor keeps it alive."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from ..wire.config import runtime_dir
from ..wire.errors import ManagerUnavailable
from ..wire.messages import PROTOCOL, GetStatus, Hello, ManagerToClient, Message, Refused, Status, StopModels
from ..wire.runtime import RuntimeDir
from ..wire.transport import Connection, ConnectionLost, peer_pid_uid

_ANSWER_WITHIN = 5.0
_END_WITHIN = 15.0


def read_status(runtime: Path | None = None) -> Status | None:
    """What the manager does; None if there is none. Raises ManagerUnavailable if it does not answer."""
    return _ask(RuntimeDir(runtime or runtime_dir()), GetStatus())


def stop_models(runtime: Path | None = None, key: str | None = None) -> Status | None:
    """End a model's engine, or with no key all of them and the manager, killing a manager that does not answer.

    Returns what the manager said last, None if there was none; then no process, socket or file of it is left.
    """
    folder = RuntimeDir(runtime or runtime_dir())
    try:
        status = _ask(folder, StopModels(key))
    except ManagerUnavailable:
        if key is not None:
            raise
        _kill(folder)
        status = None
    if key is None:
        _wait_until_gone(folder)
    return status


def sweep(runtime: Path | None = None) -> None:
    """Remove what killed processes left: a manager after its last client, jobs before they had a manager."""
    folder = RuntimeDir(runtime or runtime_dir())
    if folder.check():
        folder.sweep()


def _ask(folder: RuntimeDir, question: Message) -> Status | None:
    with _observing(folder) as connection:
        if connection is None:
            return None
        try:
            connection.send(Hello(protocol=PROTOCOL, pid=os.getpid(), observer=True))
            connection.send(question)
            while True:
                match connection.receive():
                    case Status() as status:
                        return status
                    case Refused(error):
                        raise ManagerUnavailable(error.message)
                    case _:
                        pass
        except ConnectionLost as error:
            raise ManagerUnavailable(f"the manager in {folder.path} does not answer: {error}") from None


@contextlib.contextmanager
def _observing(folder: RuntimeDir) -> Iterator[Connection[ManagerToClient] | None]:
    sock = folder.connect() if folder.check() else None
    if sock is None:
        yield None
        return
    sock.settimeout(_ANSWER_WITHIN)
    connection: Connection[ManagerToClient] = Connection(sock, ManagerToClient)
    try:
        yield connection
    finally:
        connection.close()


def _kill(folder: RuntimeDir) -> None:
    sock = folder.connect()
    if sock is None:
        return
    with sock:
        pid, _ = peer_pid_uid(sock)
        if pid > 1:
            os.kill(pid, signal.SIGKILL)


def _wait_until_gone(folder: RuntimeDir) -> None:
    deadline = time.monotonic() + _END_WITHIN
    while folder.check() and (folder.lock.exists() or folder.socket.exists()):
        folder.sweep()
        if time.monotonic() > deadline:
            raise ManagerUnavailable(f"the manager in {folder.path} does not end")
        time.sleep(0.02)
