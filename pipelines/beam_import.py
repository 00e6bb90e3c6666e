"""Beam's import as `millrace run` and its like need it: without the libraries of sources that no job of theirs has.

Beam imports a client of everything that it can read or write, and does without each that is not installed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_NEVER_USED = ("pandas", "pymongo", "IPython", "google.cloud.bigquery", "google.cloud.bigquery_storage_v1")
_USED_WHERE_NAMED = {"google.cloud.pubsub": "pubsub", "google.cloud.dataflow": "dataflow"}
"""Used by a job one of whose flags has that word in it."""


@contextmanager
def without_unused_clients(flags: Sequence[str]) -> Iterator[None]:
    """Import Beam in two thirds of its time. Afterwards all that is installed can be imported."""
    words = " ".join(flags).lower()
    unused = [*_NEVER_USED, *(name for name, word in _USED_WHERE_NAMED.items() if word not in words)]
    hidden = [name for name in unused if name not in sys.modules]
    logging.getLogger("apache_beam.io.mongodbio").setLevel(logging.ERROR)  # warns that pymongo is missing
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: importing it raises ImportError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
