"""The contestants, each behind the same two calls: load a checkpoint, run a workload. Each has a process of its own.

The peers are used as their documentation shows. Every side returns how many tokens it generated for each item; the
harness checks them against the workload, so no side can win by generating less. A side's module is imported in the
side's own environment, which may hold neither torch nor millrace, so libraries are imported where they are used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from benchmarks.workload import Item


class Side(Protocol):
    """One contestant."""

    def load(self, folder: Path, dtype: str) -> None:
        """Load the checkpoint, ready to generate; raises Unsupported."""

    def run(self, items: list[Item]) -> list[int]:
        """Generate for all items; returns the number of tokens generated for each."""


@runtime_checkable
class KnowsMemory(Protocol):
    """A side that can say what its memory holds."""

    def memory(self) -> dict[str, float]:
        """MB of 2^20, so far: `weights_mb`, and `kv_mb`, of the KV cache's pages that were ever written."""


@runtime_checkable
class Prepares(Protocol):
    """A side that has something to do before its time is taken."""

    def prepare(self, items: list[Item]) -> None:
        """Get ready to run these."""


class Unsupported(Exception):
    """The side cannot compute in this dtype here; says why."""
