"""Signs of life of a server that starts: is it slow, or does it hang? Knows its processes; asks the server nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psutil  # type: ignore[import-untyped, unused-ignore]

_LOOKS = 8
"""How often the processes are looked at in the time after which they are taken for hung."""


class SignsOfLife:
    """What the processes below a guard do.

    A server that loads a model may refuse connections for as long as it likes: it does not listen yet. It hangs if one
    of its processes is stopped, or if it takes connections, answers none of them, and uses no processor time.
    """

    def __init__(self, guard: int, hang_timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`guard`: its process id. The server counts as alive now."""
        self._guard = guard
        self._hang_timeout = hang_timeout
        self._clock = clock
        self._seen_at = self._looked_at = clock()
        self._used = 0.0
        """Seconds of processor time that the processes had used at the last look."""

    def missing(self, *, is_silent: bool) -> str | None:
        """Why the server counts as hung; None while it does not. `is_silent`: it took a connection just now and gave no
        answer.
        """
        now = self._clock()
        if now - self._looked_at < self._hang_timeout / _LOOKS:
            return None
        self._looked_at = now
        stopped, used = self._look()
        is_busy, self._used = used != self._used, used
        if stopped is None and (is_busy or not is_silent):
            self._seen_at = now
        if now - self._seen_at < self._hang_timeout:
            return None
        seconds = f"for {self._hang_timeout:g} s"
        return (
            f"its process {stopped} is stopped {seconds}"
            if stopped
            else f"it accepted connections, answered none and computed nothing {seconds}"
        )

    def _look(self) -> tuple[int | None, float]:
        """A process that is stopped, if any, and the processor time of all."""
        stopped, used = None, 0.0
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._guard).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    used += times.user + times.system
                    stopped = process.pid if process.status() == psutil.STATUS_STOPPED else stopped
        return stopped, used
