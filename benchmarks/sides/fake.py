"""A side that needs nothing: it shows what the harness does and costs, and that a side can run in any environment."""

from __future__ import annotations

from pathlib import Path

from benchmarks.sides import Unsupported
from benchmarks.workload import Item


class Fake:
    """Claims the tokens that were asked for, at once; refuses int8 as it loads."""

    def load(self, folder: Path, dtype: str) -> None:
        if dtype == "int8":
            raise Unsupported("a fake has no int8")
        if not folder.is_dir():
            raise FileNotFoundError(folder)

    def run(self, items: list[Item]) -> list[int]:
        return [item.num_output for item in items]
