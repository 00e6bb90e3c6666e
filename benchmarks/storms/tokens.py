"""How many tokens the engines of a machine have computed, whoever was killed meanwhile: looked at while they run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.runners.watching import repeatedly
from tests.runtime_folders import status_of


class Computed:
    """Tokens by engine, as its manager last said it; what an engine computed after that is not known."""

    def __init__(self) -> None:
        self._by_engine: dict[tuple[int, ...], int] = {}

    def look(self, runtime: Path) -> None:
        """Take in what the manager says now."""
        if (status := status_of(runtime)) is None:
            return
        for model in status.models:
            stats, engines = model.stats, (status.pid, *model.pids)
            tokens = stats.prompt_tokens - stats.cached_tokens + stats.generated_tokens
            self._by_engine[engines] = max(tokens, self._by_engine.get(engines, 0))

    @property
    def total(self) -> int:
        """Tokens of all engines, also of those that are gone."""
        return sum(self._by_engine.values())


@contextlib.contextmanager
def computed(runtime: Path) -> Iterator[Computed]:
    """Looks while the block runs."""
    found = Computed()
    with repeatedly(lambda: found.look(runtime)):
        yield found
