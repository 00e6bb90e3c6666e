"""Counts what the engines of a job compute, in files that outlive them; put in by Python's start.

CHAOS_TOKENS names the folder. Each engine has a file there that it maps, so that a count is kept also after SIGKILL.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import mmap
import os
import struct
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_ENGINE = "millrace.model_manager.engine.engine"
_COUNTS = struct.Struct("=qq")


def install() -> None:
    """Have the engine count as it is imported, if the environment asks for it."""
    if folder := os.environ.get("CHAOS_TOKENS"):
        sys.meta_path.insert(0, _Counting(Path(folder)))


def counted(folder: Path) -> tuple[int, int]:
    """Tokens that all engines have computed, and how many of their steps' sequences got a token.

    The file of an engine that was killed as it made it is empty.
    """
    files = (path.read_bytes() for path in folder.iterdir())
    each = [_COUNTS.unpack(content) for content in files if len(content) == _COUNTS.size]
    return sum(computed for computed, _ in each), sum(sampled for _, sampled in each)


class _Counting(importlib.abc.MetaPathFinder):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        if name != _ENGINE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        assert loader is not None, "the engine is there"
        execute = loader.exec_module

        def then_count(module: Any) -> None:
            execute(module)
            _count(module.LLMEngine, self._folder)

        loader.exec_module = then_count  # type: ignore[method-assign]
        return spec


def _count(engine: Any, folder: Path) -> None:
    launch, counts = engine._launch, _Counts(folder)

    def launched(self: Any, batch: Any) -> Any:
        counts.add(sum(each.num_tokens for each in batch), sum(each.samples for each in batch))
        return launch(self, batch)

    engine._launch = launched


class _Counts:
    """This process's two numbers; a forked process begins at 0 in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0

    def add(self, computed: int, sampled: int) -> None:
        if self._pid != os.getpid():
            self._pid, self._now = os.getpid(), (0, 0)
            path = self._folder / f"{self._pid}-{time.monotonic_ns()}"
            path.write_bytes(bytes(_COUNTS.size))
            with path.open("r+b") as file:
                self._file = mmap.mmap(file.fileno(), _COUNTS.size)
        self._now = (self._now[0] + computed, self._now[1] + sampled)
        _COUNTS.pack_into(self._file, 0, *self._now)
