"""What is logged while a job runs: by default our own warnings, and nothing that would drown the progress line."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_OURS = ("millrace", "model_manager", "transforms", "pipelines")


@contextmanager
def logs_at(level: str) -> Iterator[None]:
    """Log from `level` up: of our own modules always, of libraries from info down; their warnings are off otherwise."""
    root = logging.getLogger()
    before = root.level
    theirs = logging.CRITICAL if level in ("warning", "error") else level.upper()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname).1s %(asctime)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(theirs)
    for name in _OURS:
        logging.getLogger(name).setLevel(level.upper())
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    with warnings.catch_warnings():
        if theirs == logging.CRITICAL:
            warnings.simplefilter("ignore")
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(before)
