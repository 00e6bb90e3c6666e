"""Beam's import as `millrace run` and its like need it: without the libraries of sources that no job of theirs has.

Beam imports a client of everything that it can read or write, and does without each that is not installed.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_NEVER_USED = ("pandas", "pymongo", "IPython", "google.cloud.bigquery", "google.cloud.bigquery_storage_v1")
_GOOGLES = ("gs:", "pubsub", "dataflow")  # Dataflow makes a bucket where no flag names one
_USED_WHERE_NAMED = {
    "apache_beam.io.gcp.bigquery": _GOOGLES,  # beam.io imports its names before those of Pub/Sub, or none of them
    "apache_beam.io.gcp.gcsfilesystem": _GOOGLES,
    "google.cloud.storage": _GOOGLES,
    "google.cloud.pubsub": ("pubsub",),
    "google.cloud.dataflow": ("dataflow",),
    "boto3": ("s3:",),
}
"""Used by a job one of whose flags has one of these texts in it."""
_USERS_CODE = re.compile(r"--runner[= ]\S*\.|--schema[= ]\S*:")
"""A class of the user's, whose module may want all of Beam."""


@contextmanager
def without_unused_clients(flags: Sequence[str]) -> Iterator[None]:
    """Import Beam in two thirds of the time. Hidden libraries can be imported afterwards; Beam's modules, once
    imported, stay without them. Not for use while other threads import.
    """
    with without(unused_clients(flags)):
        yield


def unused_clients(flags: Sequence[str]) -> list[str]:
    """The libraries that a job with these flags does without."""
    words = " ".join(flags).lower()
    not_named = [name for name, texts in _USED_WHERE_NAMED.items() if not any(text in words for text in texts)]
    return [] if _USERS_CODE.search(words) else [*_NEVER_USED, *not_named]


def left_out() -> list[str]:
    """The libraries without which this process has imported Beam: its workers need them no more than it does."""
    return [name for name in (*_NEVER_USED, *_USED_WHERE_NAMED) if name not in sys.modules]


@contextmanager
def without(names: Sequence[str]) -> Iterator[None]:
    """Import Beam without these libraries, as far as they are not imported already."""
    hidden = [name for name in names if name not in sys.modules]
    mongodb = logging.getLogger("apache_beam.io.mongodbio")
    mongodb.disabled = True  # it warns that pymongo is missing
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: importing it raises ImportError
    try:
        yield
    finally:
        mongodb.disabled = False
        for name in hidden:
            sys.modules.pop(name, None)
