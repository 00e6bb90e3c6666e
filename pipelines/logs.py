"""What is logged while a job runs: by default our own warnings, and nothing that would drown the progress line."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_OURS = ("millrace", "model_manager", "transforms", "pipelines")
_STDERR = 2


@contextmanager
def logs_at(level: str) -> Iterator[TextIO]:
    """Log our own modules from `level` up; from info down the libraries' too. Yields where the terminal still is.

    Otherwise stderr itself is closed to all: libraries in C and Beam's worker processes print what they like to it.
    """
    verbose = level in ("debug", "info")
    with _own_stderr(shared=verbose) as stream, warnings.catch_warnings():
        if not verbose:
            warnings.simplefilter("ignore")
        with _handler(stream, level, level.upper() if verbose else logging.CRITICAL):
            yield stream


@contextmanager
def _own_stderr(*, shared: bool) -> Iterator[TextIO]:
    if shared or not _is_real(sys.stderr):
        yield sys.stderr
        return
    sys.stderr.flush()
    with os.fdopen(os.dup(_STDERR), "w", buffering=1, encoding="utf-8", errors="replace") as stream:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDERR)
        os.close(nowhere)
        try:
            yield stream
        finally:
            sys.stderr.flush()
            os.dup2(stream.fileno(), _STDERR)


def _is_real(stream: TextIO) -> bool:
    """Whether the stream is the process's own, and not put in its place by a notebook or a test."""
    try:
        return stream.fileno() == _STDERR
    except (OSError, io.UnsupportedOperation):
        return False


@contextmanager
def _handler(stream: TextIO, ours: str, theirs: str | int) -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname).1s %(asctime)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(theirs)
    for name in _OURS:
        logging.getLogger(name).setLevel(ours.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
