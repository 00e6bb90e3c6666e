"""What is logged while a job runs, each line once: by default our own warnings, and nothing that would drown the
progress line; the libraries', Beam's above all, at a level above ours.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_OURS = "millrace"
_STDERR = 2
_THEIRS = {"debug": logging.INFO, "info": logging.WARNING}


@contextmanager
def logs_at(level: str) -> Iterator[TextIO]:
    """Log our own modules from `level` up; from info down the libraries', a level higher. Yields where the terminal is.

    Otherwise stderr itself is closed to all: libraries in C and Beam's worker processes print what they like to it.
    """
    verbose = level in _THEIRS
    with _own_stderr(shared=verbose) as stream, warnings.catch_warnings():
        if not verbose:
            warnings.simplefilter("ignore")
        with _handler(stream, level, _THEIRS.get(level, logging.CRITICAL)):
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
def _handler(stream: TextIO, ours: str, theirs: int) -> Iterator[None]:
    root = logging.getLogger()
    before, others = root.level, [each for each in root.handlers if _prints(each)]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname).1s %(asctime)s %(name)s: %(message)s"))
    for other in others:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(theirs)
    logging.getLogger(_OURS).setLevel(ours.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        for other in others:
            root.addHandler(other)
        root.setLevel(before)


def _prints(handler: logging.Handler) -> bool:
    """Whether it is what a library's call of logging.info() puts there where nobody has set up logging."""
    return type(handler) is logging.StreamHandler
