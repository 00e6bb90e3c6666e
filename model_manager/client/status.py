"""Reads the status of a manager, and stops it. An observer neither starts a manager nor keeps it alive."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from ..wire.errors import ManagerUnavailable
from ..wire.manager_place import ManagerPlace, manager_place
from ..wire.messages import GetStatus, Message, Status, StopModels
from ..wire.runtime import RuntimeDir
from ..wire.transport import peer_pid_uid
from .observing import ask

_END_WITHIN = 15.0

ReadStatus = Callable[[], Status | None]
"""What the manager does; None if there is none: `read_status` with a manager's place."""


def read_status(manager: ManagerPlace | Path | None = None) -> Status | None:
    """What the manager does; None if there is none. Raises ManagerUnavailable if it does not answer.

    `manager`: where it is, or its runtime folder; by default what the environment says.
    """
    return _status(_place(manager), GetStatus())


def stop_models(manager: ManagerPlace | Path | None = None, key: str | None = None) -> Status | None:
    """End a model's engine, or with no key all of them and the manager, killing a manager that does not answer.

    Returns what the manager said last, None if there was none; then no process, socket or file of it is left. A manager
    at a TCP address, which others start, stays and is never killed.
    """
    place = _place(manager)
    if not isinstance(place, RuntimeDir):
        return _status(place, StopModels(key))
    try:
        status = _status(place, StopModels(key))
    except ManagerUnavailable:
        if key is not None:
            raise
        _kill(place)
        status = None
    if key is None:
        _wait_until_gone(place)
    return status


def sweep(manager: ManagerPlace | Path | None = None) -> None:
    """Remove what killed processes left here: a manager after its last client, jobs before they had a manager."""
    place = _place(manager)
    if isinstance(place, RuntimeDir) and place.check():
        place.sweep()


def _place(manager: ManagerPlace | Path | None) -> ManagerPlace:
    if manager is None:
        return manager_place()
    return RuntimeDir(manager) if isinstance(manager, Path) else manager


def _status(place: ManagerPlace, question: Message) -> Status | None:
    """Processes of a manager at a TCP address are named with its host: their ids mean nothing here."""
    status = ask(place, question, Status)
    if status is None or isinstance(place, RuntimeDir):
        return status
    host = place.address.host
    return replace(status, processes=[replace(each, host=each.host or host) for each in status.processes])


def _kill(folder: RuntimeDir) -> None:
    sock = folder.connect()
    if sock is None:
        return
    with sock:
        pid, _ = peer_pid_uid(sock)
        if pid > 1:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(pid, signal.SIGKILL)


def _wait_until_gone(folder: RuntimeDir) -> None:
    deadline = time.monotonic() + _END_WITHIN
    while folder.check() and (folder.lock.exists() or folder.socket.exists()):
        folder.sweep()
        if time.monotonic() > deadline:
            raise ManagerUnavailable(f"the manager in {folder.path} does not end")
        time.sleep(0.02)
