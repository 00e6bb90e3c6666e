"""One connection to the manager: ordered sends that coalesce, signs of life both ways. Knows no request's meaning."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable

from ..wire.batching import request_batches
from ..wire.config import ManagerConfig
from ..wire.errors import ConfigError
from ..wire.messages import PROTOCOL, Hello, ManagerToClient, Message, Ping, Refused, Submit, Welcome
from ..wire.transport import Connection, ConnectionLost, ProtocolError


class Link:
    """One connection to the manager, from Hello to its end. Any thread may send; one thread receives."""

    def __init__(self, connection: Connection[ManagerToClient], hang_timeout: float, fence: Callable[[], None]) -> None:
        """Says Hello, which is thus the first message whoever sends next; raises ConnectionLost, the socket closed.

        `hang_timeout` in seconds: a manager silent for so long is taken for dead. `fence` lets another begin in its
        place, where it cannot be killed.
        """
        connection.limit_sends(hang_timeout)  # a manager that is stopped does not read
        self._connection = connection
        self._manager = connection.peer_pid
        self._hang_timeout = hang_timeout
        self._fence = fence
        self._unsent: deque[Message] = deque()
        self._is_behind = False
        """True if a message is sent in part; a thread was started to send the rest."""
        self._sending = threading.Lock()
        self._heard = self._checked = time.monotonic()
        try:
            self._connection.send(Hello(protocol=PROTOCOL, pid=os.getpid()))
        except ConnectionLost:
            self.close()
            raise

    def await_welcome(self) -> ManagerConfig:
        """The settings that the manager runs with.

        Raises ConfigError if the manager has another version, ConnectionLost if the manager is ending.
        """
        answer = self.receive()
        if isinstance(answer, Refused):
            error = answer.error.exception()
            raise error if isinstance(error, ConfigError) else ConnectionLost(str(error))
        if not isinstance(answer, Welcome):
            raise ProtocolError(f"a {type(answer).__name__} in answer to Hello")
        return answer.settings

    def receive(self) -> ManagerToClient:
        """The next message; raises ConnectionLost or ProtocolError."""
        message = self._connection.receive()
        self._heard = time.monotonic()
        return message

    def enqueue(self, message: Message) -> None:
        """Queue a message for the next `flush` of any thread; never waits."""
        self._unsent.append(message)

    def flush(self) -> None:
        """Send the queued messages, in order. If the connection is lost, the receiving thread gets the error."""
        try:
            while self._unsent or self._is_behind:  # also messages of a thread that found the lock taken
                with self._sending:
                    if self._is_behind:
                        self._connection.send_rest()
                        self._is_behind = False
                    while self._unsent:
                        for message in self._next():
                            self._connection.send(message)
        except ConnectionLost:
            self.close()

    def flush_at_once(self) -> None:
        """Send the queued messages without waiting; another thread sends what the manager does not take now."""
        try:  # a thread that finds the lock taken leaves its messages to the one that holds it, which looks again
            while self._unsent and not self._is_behind and self._sending.acquire(blocking=False):
                try:
                    self._send_at_once()
                finally:
                    self._sending.release()
        except ConnectionLost:
            self.close()

    def _send_at_once(self) -> None:
        while self._unsent and not self._is_behind:
            sent = [self._connection.send_at_once(message) for message in self._next()]
            if not sent[-1]:
                self._is_behind = True
                threading.Thread(target=self.flush, name="millrace-flush", daemon=True).start()

    def _next(self) -> list[Message]:
        """The next message. Consecutive Submits are merged into as few as possible."""
        message = self._unsent.popleft()
        if not isinstance(message, Submit):
            return [message]
        requests = list(message.requests)
        while self._unsent and isinstance(following := self._unsent[0], Submit):
            self._unsent.popleft()
            requests += following.requests
        return [Submit(message.key, batch) for batch in request_batches(requests)]

    def check(self, interval: float) -> None:
        """Ask the manager for a sign of life, and leave one that gives none. Call this every `interval` seconds.

        This machine's is killed, as its engines hold memory; another container's, whose process is not seen from here,
        is fenced: when it goes on it ends. A delay of this process itself does not count.
        """
        now = time.monotonic()
        if now - self._checked > interval + self._hang_timeout / 2:
            self._heard = now
        if now - self._heard > self._hang_timeout:
            try:
                self._end_manager()
            finally:
                self.close()
        else:
            self.enqueue(Ping())
            self.flush()
        self._checked = time.monotonic()

    def _end_manager(self) -> None:
        if self._manager > 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._manager, signal.SIGKILL)
        else:  # a process of another machine, or one that this namespace cannot see
            self._fence()

    def close(self) -> None:
        """End the connection; the receiving thread gets ConnectionLost."""
        self._connection.close()

    def abandon(self) -> None:
        """Close the descriptor in a forked process. The connection stays the parent's."""
        self._connection.abandon()
