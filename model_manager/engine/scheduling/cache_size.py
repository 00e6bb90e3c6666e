"""How large the KV cache of a running engine is, and what it takes to change that.

Knows blocks and bytes; not why there is to be more or less memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..interface import ModelRunner
from .scheduler import Scheduler


class CacheSize:
    """The size of the KV caches of an engine's models, which have equally many blocks."""

    def __init__(self, runners: Sequence[ModelRunner], scheduler: Scheduler, max_len: int) -> None:
        """`max_len`: most tokens of a sequence, for which there are always blocks."""
        of_each = [runner.bytes_per_block for runner in runners]
        self._bytes_per_block = sum(of_each) if all(of_each) else 0
        self._most = self._num_blocks = runners[0].num_blocks
        self._least = -(-max_len // runners[0].block_size)
        self._runners = runners
        self._scheduler = scheduler
        self._wanted: int | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the caches may take; 0 if that cannot be changed."""
        return self._num_blocks * self._bytes_per_block

    @property
    def is_due(self) -> bool:
        """Whether the size is to change."""
        return self._wanted is not None

    def want(self, size: int) -> None:
        """Ask for a size in bytes, with the bounds of ResizableEngine.resize_cache (interface.py)."""
        assert self._bytes_per_block, "its size cannot be changed"
        self._wanted = min(self._most, max(self._least, size // self._bytes_per_block))

    def change(self) -> int | None:
        """Change the size as far as held sequences allow; no token may be pending. Returns the new size once memory
        beyond is given back, else None.
        """
        assert self._wanted is not None
        if not self._scheduler.resize(self._wanted):
            return None
        for runner in self._runners:
            runner.give_back(self._wanted)
        self._num_blocks, self._wanted = self._wanted, None
        return self.num_bytes
