"""Which engines have the shared prompt of each family of requests.

A family is an affinity group by prefix: the requests that one caller's prompt becomes, such as n answers to one prompt
or the scores of several continuations. They share the prompt, so it is computed once if they run on the same engine.
`Request.family` names the group: it is the id of its first request. Knows ids and engines' indexes; not whether those
engines have room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set

_MOST = 4096
"""Families remembered; an engine's cache hardly holds the prompts of more."""


class Families:
    """Indexes of engines by family. The family whose last request is the longest ago is forgotten first."""

    def __init__(self) -> None:
        self._engines: OrderedDict[str, set[int]] = OrderedDict()

    def engines_of(self, family: str) -> Set[int]:
        """Engines that computed the family's prompt, or are going to. None for "", the family of a lone request."""
        return self._engines.get(family, frozenset())

    def put(self, family: str, engine: int) -> None:
        """Note that the engine gets a request of the family."""
        if not family:
            return
        self._engines.setdefault(family, set()).add(engine)
        self._engines.move_to_end(family)
        if len(self._engines) > _MOST:
            self._engines.popitem(last=False)

    def forget(self, engine: int) -> None:
        """Note that the engine ended: the prompts that it had computed are lost."""
        for engines in self._engines.values():
            engines.discard(engine)
