"""How often constraints were compiled, and how often that was not needed. Knows no grammar."""

from __future__ import annotations

import threading
from typing import NamedTuple


class Compiled(NamedTuple):
    """Counts since the engine's start."""

    compiled: int = 0
    """Constraints that were compiled, refused ones included."""
    seconds: float = 0.0
    """Seconds that these took."""
    hits: int = 0
    """Requests whose constraint was compiled, or on its way, for an earlier one."""


class GrammarCounts:
    """Any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Compiled()

    def compiled(self, seconds: float) -> None:
        """Count a compilation."""
        with self._lock:
            compiled, before, hits = self._counts
            self._counts = Compiled(compiled + 1, before + seconds, hits)

    def hit(self) -> None:
        """Count a request that needed none."""
        with self._lock:
            self._counts = self._counts._replace(hits=self._counts.hits + 1)

    def now(self) -> Compiled:
        """All counts."""
        return self._counts
