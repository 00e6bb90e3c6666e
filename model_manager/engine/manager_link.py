"""The inference process's end of its conversation with the manager: a thread that listens, and one that says "alive".

Knows messages and when to leave; not what a request is. The process must never outlive its manager nor hold up its
shutdown, whatever the main thread is doing (minutes of loading, a stuck kernel), so the listening thread ends it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn, Self

from ..wire.engine_messages import EngineMessage, Heartbeat, ManagerToEngine, Shutdown
from ..wire.transport import Connection, ConnectionLost, ProtocolError

log = logging.getLogger(__name__)

_product_log = logging.getLogger("millrace")
_MOST_WARNINGS = 20
_LONGEST_WARNING = 1000
"""Characters of a warning that are sent."""
MALFORMED_INPUT = 2
"""Exit status after something that is no message."""


class Warnings(logging.Handler):
    """Keeps what is logged as a warning until it is sent; of many, the first.

    Any module or back end may warn, and none of them knows the manager: a handler of the log hears them all.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: queue.Queue[str] = queue.Queue(_MOST_WARNINGS)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's text."""
        with contextlib.suppress(queue.Full):
            self._texts.put_nowait(record.getMessage()[:_LONGEST_WARNING])

    def take(self) -> list[str]:
        """Take all kept texts."""
        texts = []
        with contextlib.suppress(queue.Empty):
            while True:
                texts.append(self._texts.get_nowait())
        return texts


class ManagerLink:
    """Sends and receives; a context manager that owns both threads and the connection.

    Ends the process, from whichever thread notices, with status 0 when the manager shuts it down or is gone, and
    MALFORMED_INPUT when it sends what is no message.
    """

    def __init__(self, connection: Connection[ManagerToEngine], heartbeat: float) -> None:
        """`heartbeat` in seconds, counted from entering the context."""
        self._connection = connection
        self._interval = heartbeat
        self._inbox: queue.SimpleQueue[ManagerToEngine] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._steps = 0
        self._busy_since: float | None = None
        self._warnings = Warnings()
        self._threads = [
            threading.Thread(target=target, name=target.__name__.strip("_"), daemon=True)
            for target in (self._listen, self._beat)
        ]

    def __enter__(self) -> Self:
        _product_log.addHandler(self._warnings)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _product_log.removeHandler(self._warnings)
        self._closing.set()
        self._connection.close()  # wakes the threads
        for thread in self._threads:
            thread.join()

    def send(self, message: EngineMessage) -> None:
        """Send, waiting while the manager is behind."""
        try:
            self._connection.send(message)
        except ConnectionLost:
            if not self._closing.is_set():
                _leave(0, "the manager is gone")

    def receive(self, *, wait: bool) -> list[ManagerToEngine]:
        """All that has come, in order; with `wait`, at least one message."""
        messages = [self._inbox.get()] if wait else []
        with contextlib.suppress(queue.Empty):
            while True:
                messages.append(self._inbox.get_nowait())
        return messages

    @contextlib.contextmanager
    def working(self, steps: int = 0) -> Iterator[None]:
        """Within, the main thread does something that the manager times: loading (no steps), or a step."""
        self._busy_since = time.monotonic()
        yield
        self._busy_since = None
        self._steps += steps

    def _listen(self) -> None:
        try:
            while not isinstance(message := self._connection.receive(), Shutdown):
                self._inbox.put(message)
            _leave(0, "shut down by the manager")
        except ConnectionLost:
            if not self._closing.is_set():
                _leave(0, "the manager is gone")
        except ProtocolError as error:
            _leave(MALFORMED_INPUT, f"malformed input: {error}")

    def _beat(self) -> None:
        while not self._closing.wait(self._interval):
            busy_since = self._busy_since
            in_step = 0.0 if busy_since is None else time.monotonic() - busy_since
            self.send(Heartbeat(steps=self._steps, in_step=in_step, warnings=self._warnings.take()))


def _leave(status: int, why: str) -> NoReturn:
    """End the process without waiting for any thread, whatever C code it may be in."""
    log.info("ends: %s", why)
    os._exit(status)
