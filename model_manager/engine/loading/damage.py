"""Turns failures while weights are read into errors that name the folder or say that memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ...wire.errors import ModelCorrupt, ModelDoesNotFit
from ...wire.free_memory import is_shortage, shortage


@contextmanager
def damage_named(folder: Path, *signs: type[Exception]) -> Iterator[None]:
    """Within, errors of the classes `signs` become ModelCorrupt, or ModelDoesNotFit if memory ran out."""
    try:
        yield
    except Exception as error:
        if is_shortage(error):
            raise ModelDoesNotFit(f"{folder}: memory ran out while the weights were loaded: {shortage()}") from None
        if isinstance(error, torch.OutOfMemoryError):
            raise ModelDoesNotFit(f"{folder}: memory ran out while the weights were loaded") from None
        if not isinstance(error, signs):
            raise
        raise ModelCorrupt(f"{folder}: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from None
