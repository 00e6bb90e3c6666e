"""Reads the status of a manager, and stops it. An observer neither starts a manager nor keeps it alive."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from ..wire.errors import ManagerUnavailable
from ..wire.manager_place import ManagerPlace, manager_place
from ..wire.messages import GetStatus, Message, Status, StopModels
from ..wire.runtime import RuntimeDir
from ..wire.transport import peer_pid_uid
from .observing import Ending, ask

_END_WITHIN = 15.0

ReadStatus = Callable[[], Status | None]
"""What the manager does; None if there is none: `read_status` with a manager's place."""


def read_status(manager: ManagerPlace | Path | None = None) -> Status | None:
    """What the manager does; None if there is none. Raises ManagerUnavailable if it does not answer.

    `manager`: where it is, or its runtime folder; by default what the environment says.
    """
    return _status(_place(manager), GetStatus())


def stop_models(manager: ManagerPlace | Path | None = None, key: str | None = None) -> Status | None:
    """End a model's engine, or with no key all of them and the manager, as `end_manager` does.

    Returns what the manager said last, None if there was none, or it did not answer. A manager at a TCP address, which
    others start, stays and is never killed.
    """
    place = _place(manager)
    if isinstance(place, RuntimeDir) and key is None:
        return end_manager(place).status
    return _status(place, StopModels(key))


class Ended(NamedTuple):
    """How `end_manager` has ended a manager."""

    status: Status | None
    """What it said last."""
    by: Literal["itself", "kill", "fence"]
    """`kill`: it did not answer. `fence`: nor can it be killed from here, so it may stand still for ever."""


def end_manager(folder: RuntimeDir) -> Ended:
    """End the manager of a folder, if it has one, and its engines. One that does not answer is killed; one that cannot
    be killed from here, as it runs in another container or does not listen yet, is fenced: it ends when it goes on.
    Then no socket or file of it is left, and a process only if it was fenced. Another that a job starts meanwhile
    stays.
    """
    stopping = _Stopping(folder)
    try:
        return Ended(stopping.ask(), "itself")
    except ManagerUnavailable:
        if folder.holder() != stopping.holder:  # another one, which nobody has asked
            raise
        by = _end_by_force(folder, stopping.holder)
    stopping.wait()
    if folder.check():
        folder.sweep()
    return Ended(None, by)


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


def _end_by_force(folder: RuntimeDir, holder: bytes | None) -> Literal["kill", "fence"]:
    sock = folder.connect()
    if sock is not None:
        with sock:
            pid, _ = peer_pid_uid(sock)
        if pid > 1 and folder.holder() == holder:  # one of this namespace, and no successor
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(pid, signal.SIGKILL)
            return "kill"
    folder.fence(holder)
    return "fence"


class _Stopping:
    """The end of one manager. Others may begin and end beside it."""

    def __init__(self, folder: RuntimeDir) -> None:
        self._folder = folder
        self.holder: bytes | None = None
        """What names the manager that was asked last, or does not listen."""

    def ask(self) -> Status | None:
        """Ask it to end, once it listens, and wait until it is gone; what it said, None if it was gone before."""
        status: Status | None = None
        for _ in self._turns():
            if status is None:
                self.holder = self._folder.holder()
                with contextlib.suppress(Ending):
                    status = _status(self._folder, StopModels(None))
            elif self._has_successor():
                break
        return status

    def wait(self) -> None:
        """Wait until it is gone."""
        for _ in self._turns():
            if self._has_successor():
                break

    def _has_successor(self) -> bool:
        return self._folder.holder() not in (self.holder, None)

    def _turns(self) -> Iterator[None]:
        """Until nothing of a manager is here; raises ManagerUnavailable if that does not come in time."""
        folder, deadline = self._folder, time.monotonic() + _END_WITHIN
        while folder.check() and (folder.lock.exists() or folder.socket.exists()):
            yield
            folder.sweep()
            if time.monotonic() > deadline:
                raise ManagerUnavailable(f"the manager in {folder.path} does not end")
            time.sleep(0.02)
