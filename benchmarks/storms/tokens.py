"""How many tokens the engines of a machine have computed, whoever was killed meanwhile: looked at while they run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.runtime_folders import status_of

_EVERY = 0.2


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
        """Of all engines that ever were."""
        return sum(self._by_engine.values())


@contextlib.contextmanager
def computed(runtime: Path) -> Iterator[Computed]:
    """Looks every 0.2 seconds while the block runs."""
    found, over = Computed(), threading.Event()

    def look() -> None:
        while not over.wait(_EVERY):
            found.look(runtime)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
