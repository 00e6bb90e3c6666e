"""From other threads into the event loop: one wake-up for everything that waits to cross."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


class Crossing:
    """Calls functions in the loop, in the order in which threads asked for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: list[tuple[Callable[[Any], None], Any]] = []
        self._is_woken = False

    def call(self, function: Callable[[Any], None], value: Any) -> None:
        """Have the loop call `function(value)` soon; from any thread."""
        with self._lock:
            self._waiting.append((function, value))
            if self._is_woken:
                return
            self._is_woken = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._is_woken = False
        for function, value in waiting:
            function(value)
