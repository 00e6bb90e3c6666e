"""What several use at a time, and what ends with the last of them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class RefCounted:
    """Counts its users, on any thread; whoever begins to use it enters, and leaves in the end."""

    def __init__(self, users: int = 0) -> None:
        """`_lock` guards the count, and what must not change between the last leaving and the end.

        It is re-entrant: the collector may end a use in a thread that begins one.
        """
        self._lock = threading.Condition()
        self._users = users

    def enter(self) -> None:
        """One more uses it."""
        with self._lock:
            self._users += 1

    def leave(self, times: int = 1) -> None:
        """Fewer use it; with the last it ends."""
        with self._lock:
            self._users -= times
            end = None if self._users else self._let_go()
        if end is not None:
            end()

    def _let_go(self) -> Callable[[], None] | None:
        """Called under the lock when nobody is left; what it gives is called when the lock is free again."""
        raise NotImplementedError(type(self).__name__)
