"""What can be fuzzed: inputs as bytes, and the product's code that reads them.

Each target stands in a module of its own below targets/. Knows no fuzzer.
"""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

NAMES = ("wire", "rows", "constraints", "templates", "checkpoints")


class Defect(Exception):
    """The product did with an input what it must not do; the text says what."""


@dataclass(frozen=True)
class Target:
    """One kind of input."""

    run: Callable[[bytes], None]
    """Gives an input to the product. Raises whatever the product must not raise."""
    mutate: Callable[[bytes, random.Random], bytes]
    """Changes an input and keeps its form."""
    seeds: Sequence[bytes]
    """Inputs to begin with."""
    seconds: float
    """Processor time that an input may take, beyond what the product allows itself."""
    memory: int
    """MiB that the process may have."""
    inputs: int = -1
    """Inputs of a process, at most, where a library keeps memory of each; -1: any number."""


@contextmanager
def quiet_folder(parent: str | Path | None) -> Iterator[None]:
    """Within, what targets put into temporary folders goes at the end, and nothing is logged."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=parent) as tempfile.tempdir:
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            tempfile.tempdir = before
            logging.disable(logging.NOTSET)


def target(name: str) -> Target:
    """The target of that name; imports the product."""
    found: Target = import_module(f"tests.fuzz.targets.{name}").TARGET
    return found
