"""Results on their way from the event loop's thread to the inference process's, and the tokens that are kept before."""

from __future__ import annotations

import queue
import threading

from ...wire.batching import MOST_TOKENS
from ...wire.request import Failure, Output
from .streams import Kept


class Mailbox:
    """Results in order, and at most one error that ends everything. Tokens wait until somebody looks at results."""

    def __init__(self) -> None:
        self._results: queue.SimpleQueue[Output | Failure | Exception] = queue.SimpleQueue()
        self._kept: dict[str, Kept] = {}
        self._lock = threading.Lock()
        """The lock of `_kept`."""

    def put(self, result: Output | Failure) -> None:
        """A request has ended."""
        self._results.put(result)

    def keep(self, kept: Kept) -> None:
        """A request has more tokens."""
        with self._lock:
            self._kept.setdefault(kept.request_id, Kept(kept.request_id)).add(kept)

    def take_kept(self) -> list[Kept]:
        """The tokens since the last call, as many as a message holds; the others wait for the next one."""
        taken: list[Kept] = []
        size = 0
        with self._lock:
            while self._kept and size < MOST_TOKENS:
                taken.append(self._kept.pop(next(iter(self._kept))))
                size += taken[-1].size
        return taken

    def fail(self, error: Exception) -> None:
        """No request can go on."""
        self._results.put(error)

    def take(self, wait: float) -> list[Output | Failure]:
        """All that has come, after at most `wait` seconds; raises the error once what came before it was taken."""
        found: list[Output | Failure] = []
        try:
            each = self._results.get(timeout=wait)
            while not isinstance(each, Exception):
                found.append(each)
                each = self._results.get_nowait()
        except queue.Empty:
            return found
        if found:
            self._results.put(each)
            return found
        raise each
