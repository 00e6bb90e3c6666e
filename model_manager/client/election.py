"""Finds this machine's manager, and starts one if there is none: the process that gets the lock starts it, others wait.

The lock's descriptor is passed to the new manager, which holds the lock until it ends. There is no pid file or other
record of the manager, so none can be stale.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..wire.config import ManagerConfig
from ..wire.errors import ManagerUnavailable, MillraceError, signal_name
from ..wire.messages import GetStatus, ManagerToClient, Status
from ..wire.runtime import RuntimeDir
from ..wire.transport import Connection
from .observing import ask

MANAGER_COMMAND = ("-P", "-m", "millrace.model_manager.manager.process")
"""Arguments of the Python interpreter; -P keeps the current folder's files from standing in for modules."""
START_WITHIN = 60.0
"""Seconds for a manager to be there, on a machine that may be very busy."""
_STARTS = 5
"""Managers that one client starts, at most, where each is killed while it starts."""
_END_WITHIN = 15.0
"""Seconds for a manager that nobody needs to end, before it is killed."""
_POLL = 0.02
_LOG_TAIL = 2000
_SIGKILL_MEANS = (
    ", which mostly means that the machine or its container ran out of memory (`dmesg` shows it): give it more, or run"
    " less beside it"
)


class Election:
    """Connects one process to the manager."""

    def __init__(
        self,
        runtime: RuntimeDir,
        settings: ManagerConfig,
        command: Sequence[str] = MANAGER_COMMAND,
        *,
        forks_soon: bool = False,
    ) -> None:
        """`forks_soon`: a manager that it starts is to have imported by then what forked engines need."""
        self._runtime = runtime
        self._forks_soon = ["--forks_soon"] if forks_soon else []
        self._settings = settings
        self._command = command
        self._manager: subprocess.Popen[bytes] | None = None
        """The manager that it has started last."""
        self._holder: bytes | None = None
        """What names the manager that it has connected to last."""
        self._preparing = threading.Thread(target=self._prepare, name="millrace-start", daemon=True)
        self._abandoned = threading.Event()

    def prepare(self) -> None:
        """Have the manager started on a thread, beside other work; who connects is told what fails."""
        self._preparing.start()

    def abandon(self) -> None:
        """End the manager that `prepare` has started, unless it has models: another client needs it, or soon may.
        Returns once it is gone. If another process has started it, it stays.
        """
        self._abandoned.set()
        self._preparing.join()
        if self._manager is None or self._manager.poll() is not None or self._has_models():
            return
        self._manager.terminate()
        try:
            self._manager.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            self._manager.kill()
            self._manager.wait()
        self._runtime.sweep()

    def _prepare(self) -> None:
        with contextlib.suppress(MillraceError, OSError):
            self.connect(self._abandoned).close()

    def _has_models(self) -> bool:
        try:
            status = ask(self._runtime, GetStatus(), Status, START_WITHIN)
        except ManagerUnavailable:  # it is busy
            return True
        return status is not None and bool(status.models)

    def connect(self, give_up: threading.Event, within: float = START_WITHIN) -> Connection[ManagerToClient]:
        """A connection to the manager, started if need be.

        Raises ManagerUnavailable after `within` seconds, when a manager that it started fails or several were killed,
        or once `give_up` is set; ConfigError if the folder is not safe.
        """
        deadline = time.monotonic() + within
        killed = 0
        while not give_up.is_set() and time.monotonic() < deadline:
            self._runtime.prepare()
            self._holder = self._runtime.holder()
            sock = self._runtime.connect()
            if sock is not None:
                return Connection(sock, ManagerToClient)
            status = self._stand(give_up, deadline)
            if status is not None:
                killed += 1
                self._check_end(status, killed)
            give_up.wait(_POLL)
        raise ManagerUnavailable(f"no manager answers in {self._runtime.path}{self._last_words()}")

    def fence(self) -> None:
        """Let another manager begin beside the one connected to last: it is silent, and cannot be killed from here."""
        self._runtime.fence(self._holder)

    def _stand(self, give_up: threading.Event, deadline: float) -> int | None:
        """Try to get the lock; with it, start the manager and wait until it listens. Without it, return at once.

        Returns the status of a manager that ended at its start.
        """
        lock = self._runtime.try_lock()
        if lock is None:
            return None
        try:
            manager = self._manager = self._start(lock)
        finally:
            os.close(lock)  # the manager has it now
        while not self._listens() and not give_up.is_set() and time.monotonic() < deadline:
            if (status := manager.poll()) is not None:
                return status
            time.sleep(_POLL)
        threading.Thread(target=manager.wait, name="millrace-manager-reaper", daemon=True).start()
        return None

    def _check_end(self, status: int, killed: int) -> None:
        """Raises ManagerUnavailable unless another start may help: this manager was killed, and few were before."""
        if status < 0 and killed < _STARTS:
            return
        if status < 0:
            means = _SIGKILL_MEANS if status == -signal.SIGKILL else ""
            how = f"the manager was killed by {signal_name(-status)} at each of {killed} starts{means}"
        else:
            how = f"the manager ended at its start, with code {status} (start {killed})"
        error = how + self._last_words()
        self._runtime.sweep()
        raise ManagerUnavailable(error)

    def _listens(self) -> bool:
        sock = self._runtime.connect()
        if sock is None:
            return False
        sock.close()
        return True

    def _start(self, lock: int) -> subprocess.Popen[bytes]:
        self._runtime.socket.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        settings = ("--settings", msgspec.json.encode(self._settings).decode(), *self._forks_soon)
        place = ("--runtime", str(self._runtime.path), "--lock-fd", str(lock), "--starter", str(os.getpid()))
        log = os.open(self._runtime.log, flags, 0o600)
        try:
            return subprocess.Popen(
                [*self._interpreter(), *place, *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, "PYTHONPATH": module_path()},
                pass_fds=[lock],
                start_new_session=True,
            )
        except OSError as error:
            raise ManagerUnavailable(f"the manager cannot be started: {error}") from None
        finally:
            os.close(log)

    def _interpreter(self) -> list[str]:
        if not sys.executable:
            raise ManagerUnavailable("the manager cannot be started: this process does not know its Python interpreter")
        return [sys.executable, *self._command]

    def _last_words(self) -> str:
        try:
            lines = self._runtime.log.read_text(errors="replace")[-_LOG_TAIL:].strip().splitlines()
        except OSError:
            return ""
        return f": {lines[-1]}" if lines else ""


def module_path() -> str:
    """Where this process finds modules, for one that starts in another folder and without this one's main module."""
    return os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
