"""What the health route of a server that was ready tells: it works, it hangs, or it is ill. Asks nothing itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_LEAST_ASKS = 5
"""How often in a row, at least, the route says that the server is ill, before that counts."""


def is_ill(status: int) -> bool:
    """Whether a health route says by this status that the server cannot work: 429 or 400 is no such word."""
    return status >= 500


@dataclass(frozen=True)
class NoAnswer:
    """What is in the place of a status if the server gave none."""

    reason: str = ""
    """Empty if the time was over."""


class Health:
    """A server hangs if it answers nothing for `hang_timeout` seconds. It is ill if each of its answers is 5xx for
    `unhealthy_timeout` seconds, and for several answers: one in passing is none. A server that answers requests
    meanwhile is overloaded, say, and not ill.
    """

    def __init__(
        self,
        hang_timeout: float,
        unhealthy_timeout: float,
        worked_at: Callable[[], float] = lambda: -math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`worked_at`: when the server last answered a request, or a part of it, on the clock."""
        self.hang_timeout = hang_timeout
        self.interval = min(hang_timeout / 4, unhealthy_timeout / _LEAST_ASKS)
        """Seconds between two looks."""
        self._unhealthy_timeout = unhealthy_timeout
        self._worked_at = worked_at
        self._clock = clock
        self._silent_since = self._ill_since = math.inf
        self._ill_answers = 0

    def trouble(self, ask: Callable[[], int | NoAnswer]) -> str | None:
        """Ask once; why the server is to be started again, as a sentence about its route, or None. `ask` returns the
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
        if not is_ill(status) or self._worked_at() > self._ill_since:
            self._ill_since, self._ill_answers = math.inf, 0
            return None
        self._ill_since = min(now, self._ill_since)
        self._ill_answers += 1
        if self._ill_answers < _LEAST_ASKS or now - self._ill_since < self._unhealthy_timeout:
            return None
        seconds = f"{self._unhealthy_timeout:g} s (unhealthy_timeout)"
        return f"has answered {status} for {seconds}, and no request was answered"
