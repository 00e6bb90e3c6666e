"""Which engines got requests of each family: there the prompt that they share is computed, or will be.

Knows ids and engines' numbers; not whether those engines have the room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set

_MOST = 4096
"""Families remembered; an engine's cache hardly holds the prompts of more."""


class Families:
    """Engines by family; the one that was longest without a request is forgotten first."""

    def __init__(self) -> None:
        self._engines: OrderedDict[str, set[int]] = OrderedDict()

    def engines_of(self, family: str) -> Set[int]:
        """Where its prompt is, as far as is known; nowhere for the empty name, which lone requests have."""
        return self._engines.get(family, frozenset())

    def put(self, family: str, engine: int) -> None:
        """The engine gets a request of the family."""
        if not family:
            return
        self._engines.setdefault(family, set()).add(engine)
        self._engines.move_to_end(family)
        if len(self._engines) > _MOST:
            self._engines.popitem(last=False)

    def forget(self, engine: int) -> None:
        """The engine ended, and what it had computed with it."""
        for engines in self._engines.values():
            engines.discard(engine)
