"""Whether a server that was ready is healthy, is unhealthy or hangs, by its health route. Asks nothing itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..endpoint.judging import is_healthy

_LEAST_ASKS = 5
"""How often in a row, at least, the route says that the server is unhealthy, before that counts."""


@dataclass(frozen=True)
class NoAnswer:
    """What is in the place of a status if the server gave none."""

    reason: str = ""
    """Empty if the time was over."""


class Health:
    """A server hangs if it gives no answer for `hang_timeout` seconds. It is unhealthy if each of its answers is 5xx
    for `unhealthy_timeout` seconds, and for several answers. A server that answers requests meanwhile is not unhealthy:
    it may be overloaded.
    """

    def __init__(
        self,
        hang_timeout: float,
        unhealthy_timeout: float,
        last_answer_at: Callable[[], float] = lambda: -math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`last_answer_at`: when the server last answered a request, or a part of it, on the clock."""
        self.hang_timeout = hang_timeout
        self.interval = min(hang_timeout / 4, unhealthy_timeout / _LEAST_ASKS)
        """Seconds between two looks."""
        self._unhealthy_timeout = unhealthy_timeout
        self._last_answer_at = last_answer_at
        self._clock = clock
        self._silent_since = self._unhealthy_since = math.inf
        self._unhealthy_answers = 0

    def failure(self, ask: Callable[[], int | NoAnswer]) -> str | None:
        """Ask once. Why the server is to be started again, as a sentence about its route, or None. `ask` returns the
        status, if there is an answer.
        """
        began = self._clock()
        status = ask()
        now = self._clock()
        if isinstance(status, NoAnswer):
            self._silent_since = min(began, self._silent_since)
            silent = now - self._silent_since >= self.hang_timeout
            why = f": {status.reason}" if status.reason else ""
            return f"gives no answer within {self.hang_timeout:g} s (hang_timeout){why}" if silent else None
        self._silent_since = math.inf
        if is_healthy(status) or self._last_answer_at() > self._unhealthy_since:
            self._unhealthy_since, self._unhealthy_answers = math.inf, 0
            return None
        self._unhealthy_since = min(now, self._unhealthy_since)
        self._unhealthy_answers += 1
        if self._unhealthy_answers < _LEAST_ASKS or now - self._unhealthy_since < self._unhealthy_timeout:
            return None
        seconds = f"{self._unhealthy_timeout:g} s (unhealthy_timeout)"
        return f"has answered {status} for {seconds}, and no request was answered"
