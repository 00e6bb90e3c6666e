"""Turns failures while weights are read into errors that name the folder or say that memory ran out."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ...wire.errors import ModelCorrupt, ModelDoesNotFit


@contextmanager
def damage_named(folder: Path, *signs: type[Exception]) -> Iterator[None]:
    """Within, errors of the classes `signs` become ModelCorrupt, or ModelDoesNotFit if memory ran out."""
    try:
        yield
    except Exception as error:
        if _is_out_of_memory(error):
            raise ModelDoesNotFit(f"{folder}: memory ran out while the weights were loaded") from None
        if not isinstance(error, signs):
            raise
        raise ModelCorrupt(f"{folder}: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from None


def _is_out_of_memory(error: BaseException) -> bool:
    """True if memory ran out; torch's CPU allocator has no error class for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    out_of_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return out_of_memory or any(words in str(error) for words in ("DefaultCPUAllocator", "annot allocate memory"))
