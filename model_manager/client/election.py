"""Finds this machine's manager, and starts one if there is none: the process that gets the lock starts it, others wait.

The lock's descriptor is passed to the new manager, which holds the lock until it ends. There is no pid file or other
record of the manager, so none can be stale. A manager that stands still before it listens is killed by the process that
started it, and fenced by others if that process is gone. A slow one is waited for: it computes.
"""

from __future__ import annotations

import contextlib
import logging
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
from ..wire.errors import ManagerUnavailable, MillraceError, counted, signal_name
from ..wire.messages import GetStatus, ManagerToClient, Status
from ..wire.process_stat import process_stat
from ..wire.runtime import RuntimeDir
from ..wire.transport import Connection
from .observing import ask

MANAGER_COMMAND = ("-P", "-m", "millrace.model_manager.manager.process")
"""Arguments of the Python interpreter; -P keeps the current folder's files from standing in for modules."""
START_WITHIN = 60.0
"""Seconds for a manager to be there, on a machine that may be very busy."""
_STANDS_STILL = 30.0
"""Seconds without CPU time of a manager that does not listen yet: the process that started it kills it then."""
_FENCED_AFTER = 50.0
"""Seconds for the lock's holder to listen, before another process fences it: the one that started it is gone, too."""
_STARTS = 5
"""Managers that one client starts, at most, where each is killed while it starts, or stands still."""
_END_WITHIN = 15.0
"""Seconds for a manager that nobody needs to end, before it is killed."""
_POLL = 0.02
_LOG_TAIL = 2000
_SIGKILL_MEANS = (
    ", which mostly means that the machine or its container ran out of memory (`dmesg` shows it): give it more, or run"
    " less beside it"
)
_log = logging.getLogger(__name__)


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
        self._silent = 0
        """Managers that it started in the last search for one, and that stood still."""
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
        killed, self._silent, silence = 0, 0, _Silence()
        while not give_up.is_set() and time.monotonic() < deadline:
            self._runtime.prepare()
            self._holder = self._runtime.holder()
            sock = self._runtime.connect()
            if sock is not None:
                return Connection(sock, ManagerToClient)
            if silence.of(self._holder) > _FENCED_AFTER:
                self.fence()
            status = self._stand(give_up, deadline)
            if status is not None:
                killed += 1
                self._check_end(status, killed)
            give_up.wait(_POLL)
        how = f"no manager answers in {self._runtime.path}"
        if self._silent:
            how += f" ({counted(self._silent, 'manager')} started and killed, as each stood still)"
        raise ManagerUnavailable(how + self._last_words())

    def fence(self) -> None:
        """Let another manager begin beside the one that was met last: it is silent, and cannot be killed from here."""
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
        if self._stands_still(manager, give_up, deadline):
            return self._end_silent(manager)
        if manager.returncode is None:
            threading.Thread(target=manager.wait, name="millrace-manager-reaper", daemon=True).start()
        return manager.returncode

    def _stands_still(self, manager: subprocess.Popen[bytes], give_up: threading.Event, deadline: float) -> bool:
        """Wait until it listens, or has ended, or nobody waits any more; True if it stands still before that."""
        used, since = -1, time.monotonic()
        while manager.poll() is None and not self._listens() and not give_up.is_set() and time.monotonic() < deadline:
            now = process_stat(manager.pid)
            if now is not None and now.cpu != used:
                used, since = now.cpu, time.monotonic()
            if time.monotonic() - since > _STANDS_STILL:
                return True
            time.sleep(_POLL)
        return False

    def _end_silent(self, manager: subprocess.Popen[bytes]) -> int:
        """Kill a manager that is stopped (SIGSTOP) or waits for a disk; its status then."""
        self._silent += 1
        _log.warning("kills the manager %d, which stood still before it listened, and starts another", manager.pid)
        manager.kill()
        try:
            return manager.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:  # the disk has not answered yet
            self._runtime.fence(self._runtime.holder())
            return -signal.SIGKILL

    def _check_end(self, status: int, killed: int) -> None:
        """Raises ManagerUnavailable unless another start may help: this manager was killed, or fenced (0) because it
        was slow, and few were before.
        """
        if status <= 0 and killed < _STARTS:
            return
        if self._silent == killed:
            how = f"the manager stood still at each of {killed} starts, and was killed"
        elif status < 0:
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
        settings = ("--settings", msgspec.json.encode(self._settings).decode(), *self._forks_soon)
        place = ("--runtime", str(self._runtime.path), "--lock-fd", str(lock), "--starter", str(os.getpid()))
        log = self._runtime.make_room()
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


class _Silence:
    """How long the lock has one holder, who does not listen."""

    def __init__(self) -> None:
        self._holder: bytes | None = None
        self._since = 0.0

    def of(self, holder: bytes | None) -> float:
        """Seconds that it has been this holder, as far as was looked; 0 if it is none."""
        if not holder or holder != self._holder:
            self._holder, self._since = holder, time.monotonic()
        return time.monotonic() - self._since


def module_path() -> str:
    """Where this process finds modules, for one that starts in another folder and without this one's main module."""
    return os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
