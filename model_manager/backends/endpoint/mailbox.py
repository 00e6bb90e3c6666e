"""Results on their way from the event loop's thread to the inference process's."""

from __future__ import annotations

import queue

from ...wire.messages import Failure, Output


class Mailbox:
    """Results in order, and at most one error that ends everything."""

    def __init__(self) -> None:
        self._results: queue.SimpleQueue[Output | Failure | Exception] = queue.SimpleQueue()

    def put(self, result: Output | Failure) -> None:
        """A request has ended."""
        self._results.put(result)

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
