"""The server as the inference process sees it: started behind its guard, awaited, watched. Knows no request."""

from __future__ import annotations

import contextlib
import http.client
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import psutil  # type: ignore[import-untyped, unused-ignore]

from ...engine.interface import LoadInterrupted
from ...wire.errors import ModelLoadFailed, signal_name
from ..endpoint.judging import is_healthy
from .guard import GRACE, NOT_STARTED, SIGNALLED
from .health import Health, NoAnswer
from .ports import Ports
from .signs import SignsOfLife

log = logging.getLogger(__name__)

_GUARD = ("-P", "-m", "millrace.model_manager.backends.server.guard")
_LINES = 20
_LAST_LINES_WITHIN = 1.0
"""Seconds after the server's end for its last lines to be read; a process that it left may keep its output open."""
_END_WITHIN = 4 * GRACE
"""Seconds for the guard to end a server that hangs; one that the kernel does not end is left behind after that."""
_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Signals that others send; a program that ends by another one, as by SIGABRT, would do so again."""
_ANSWER_WITHIN = 5.0
"""Seconds that a server has for one answer while it starts; then it is asked again."""
_NEVER_GOOD = dict.fromkeys((301, 302, 307, 308, 404, 405), "the option health names its route") | dict.fromkeys(
    (401, 403), "the option key_env names the key that it takes, or the option health a route without one"
)
"""Answers that no server gives while it starts, each with what to do about it."""
_TOLD_AFTER = 5.0
"""Seconds that a server lacks the same before that is logged."""
_POLL = 0.2
"""Seconds between two questions to a server that starts."""


class ServerProcess:
    """One server on this machine's loopback."""

    def __init__(
        self,
        command: Sequence[str],
        ports: Ports,
        health: str,
        environment: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> None:
        """Starts it, with the variables of `environment` that are not set; raises ModelLoadFailed if another program
        has one of its ports. `headers` are sent to its health route.
        """
        self.health_url = f"http://127.0.0.1:{ports.http}{health}"
        """Where it is asked whether it lives."""
        self._ports = ports
        self._health = health
        self._headers = {name: value.encode() for name, value in headers.items()}  # a key may be beyond Latin-1
        self._lines: deque[str] = deque(maxlen=_LINES)
        with ports.lock() as lock:
            ports.await_free()
            self._folder = tempfile.mkdtemp(prefix="millrace-server-")
            self._guard = subprocess.Popen(
                [sys.executable, *_GUARD, self._folder, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**environment, **os.environ},
                pass_fds=[lock.fileno()],
            )
        self._failure = ""
        """Why the server is being ended, if it hangs or is unhealthy."""
        self._reader = threading.Thread(target=self._read, name="server output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._guard.pid

    def wait_until_healthy(self, hang_timeout: float) -> None:
        """Returns when the health route answers 200. Raises ModelLoadFailed if the server ends before; LoadInterrupted
        if it is killed, or gives no sign of life for `hang_timeout` seconds.

        How long the server may take to load its model is the manager's setting `load_timeout`.
        """
        signs = SignsOfLife(self._guard.pid, hang_timeout)
        lack, since = "", 0.0
        while True:
            if (status := self._guard.poll()) is not None:
                raise self._early_end(status)
            answer = self.ask_health(min(_ANSWER_WITHIN, hang_timeout))
            is_silent = isinstance(answer, NoAnswer) and not answer.reason
            if (missing := signs.missing(is_silent=is_silent)) is not None:
                raise LoadInterrupted(f"the server hangs before it is ready: {missing}")
            if answer == http.HTTPStatus.OK and self._guard.poll() is None:
                self._ports.check_listeners(self._guard.pid)
                return
            if not isinstance(answer, NoAnswer) and answer in _NEVER_GOOD:
                raise ModelLoadFailed(f"the server answers {answer} at {self._health}: {_NEVER_GOOD[answer]}")
            if (lacks := self._lack(answer)) != lack:
                lack, since = lacks, time.monotonic()
            elif time.monotonic() - since > _TOLD_AFTER:
                log.warning("waiting for the server: %s", lack)
                since = math.inf
            time.sleep(_POLL)

    def _lack(self, answer: int | NoAnswer) -> str:
        """What a server that starts lacks, for the log, whose last line is told if it takes too long."""
        if not isinstance(answer, NoAnswer):
            return f"{self._health} answers {answer}, and 200 is awaited"
        return f"127.0.0.1:{self._ports.http} gives no answer{answer.reason and f': {answer.reason}'}"

    def _early_end(self, status: int) -> Exception:
        """The error of a server that has ended before it was ready."""
        self._reader.join(_LAST_LINES_WITHIN)
        if status == NOT_STARTED:
            return ModelLoadFailed(f"the server did not start: {self._last()}; command takes a program on PATH")
        if status < 0:
            return LoadInterrupted(f"the server's guard was ended by {signal_name(-status)}")
        if status - SIGNALLED in _FROM_OUTSIDE:
            by = signal_name(status - SIGNALLED)
            return LoadInterrupted(f"the server was ended by {by} before it was ready: {self._last()}")
        return ModelLoadFailed(f"the server ended with status {status} before it was ready: {self._last()}")

    def ask_health(self, timeout: float) -> int | NoAnswer:
        """The status of the health route."""
        try:
            return self._ask(timeout)
        except TimeoutError:
            return NoAnswer()
        except ConnectionRefusedError:
            return NoAnswer("the connection is refused")
        except OSError as error:
            return NoAnswer(error.strerror or str(error))
        except http.client.HTTPException:
            return NoAnswer("what it sends is not HTTP")

    def _ask(self, timeout: float) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._ports.http, timeout=timeout)
        try:
            connection.request("GET", self._health, headers=self._headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def why_unhealthy(self, hang_timeout: float) -> str | None:
        """Why a server that was ready cannot be asked now, after at most so many seconds; None if it is healthy."""
        if (status := self._guard.poll()) is not None:
            return self._end(status)
        answer = self.ask_health(hang_timeout)
        if not isinstance(answer, NoAnswer):
            return None if is_healthy(answer) else f"the server's {self._health} answers {answer}"
        if (status := self._guard.poll()) is not None:
            return self._end(status)
        why = f": {answer.reason}" if answer.reason else f" within {hang_timeout:g} s"
        return f"the server's {self._health} gives no answer{why}"

    def _end(self, status: int) -> str:
        self._reader.join(_LAST_LINES_WITHIN)
        return f"the server ended with status {status}: {self._last()}"

    def watch(self, health: Health, leave: Callable[[str], None]) -> None:
        """Start to watch the server. `leave` gets the reason when it ends, hangs, or is unhealthy."""
        for target, arguments in ((self._await_end, ()), (self._await_failure, (health,))):
            threading.Thread(target=target, args=[*arguments, leave], name=target.__name__, daemon=True).start()

    def _await_end(self, leave: Callable[[str], None]) -> None:
        status = self._guard.wait()
        _end_session(self._guard.pid)
        shutil.rmtree(self._folder, ignore_errors=True)  # as the guard does, unless it was killed
        leave(self._failure or self._end(status))

    def _await_failure(self, health: Health, leave: Callable[[str], None]) -> None:
        """The server is ended first: its successor needs what it holds, such as memory and ports."""
        assert self._guard.stdin is not None
        while self._guard.poll() is None:
            time.sleep(health.interval)
            reason = health.failure(lambda: self.ask_health(health.hang_timeout))
            if reason is not None and self._guard.poll() is None:
                self._failure = f"the server's {self._health} {reason}"
                self._guard.stdin.close()
                try:
                    self._guard.wait(_END_WITHIN)  # then `_await_end` leaves
                except subprocess.TimeoutExpired:
                    leave(self._failure)
                return

    def close(self) -> None:
        """End the server and all that it has started."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        self._guard.wait()
        self._reader.join()
        self._guard.stdout.close()

    def _read(self) -> None:
        """Hand its output on to ours, and keep the last lines."""
        assert self._guard.stdout is not None
        for line in self._guard.stdout:
            text = line.decode(errors="replace").rstrip()
            if text:
                self._lines.append(text)
                print(text, file=sys.stderr, flush=True)

    def _last(self) -> str:
        return self._lines[-1][:500] if self._lines else "it wrote nothing"


def _end_session(session: int) -> None:
    """End what a killed guard has left: the processes of the server, which are in the guard's session."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)


def leave(reason: str) -> None:
    """End the inference process: the manager starts another, with another server, and sends the requests again."""
    log.error("ends: %s", reason)
    os._exit(1)
