"""Imports of large libraries. Knows no library."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Import without the garbage collector, which would look at all that is there again and again; nor does it later.

    A tenth to a sixth of the time of importing torch or Beam.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
