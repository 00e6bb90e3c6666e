"""Slots for so many things at once, counted by client: however many one client takes, another gets one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class ClientSlots:
    """A client that has none gets a slot while there are less than twice as many as `most`. For one thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[Hashable] = Counter()

    def take(self, client: Hashable) -> bool:
        """Whether there is a slot for the client; it is taken then."""
        if self._taken.total() >= self._most * (1 if self._taken[client] else 2):
            return False
        self._taken[client] += 1
        return True

    def give(self, client: Hashable) -> None:
        """Give back a client's slot."""
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
