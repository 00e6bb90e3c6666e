"""Logging while a job runs, each line once. By default it shows our own warnings; lines of libraries (mostly Beam) need
one level more.

Log lines and the progress line share one Console: it prints a log line above the progress line, never into it.
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

from rich.console import Console

from ..pages.texts import harmless

_OURS = "millrace"
_STDERR = 2
_THEIRS = {"debug": logging.INFO, "info": logging.WARNING}


@contextmanager
def logs_at(level: str) -> Iterator[Console]:
    """Log our own modules from `level` up; from info down the libraries', a level higher. Yields the console.

    Above info stderr itself goes nowhere: libraries in C and Beam's worker processes print what they like to it.
    """
    verbose = level in _THEIRS
    with _own_stderr(shared=verbose) as stream, warnings.catch_warnings():
        if not verbose:
            warnings.simplefilter("ignore")
        console = Console(file=stream)
        with _handling(ConsoleHandler(console), level, _THEIRS.get(level, logging.CRITICAL)):
            yield console


def tell(console: Console, line: str) -> None:
    """Print a line as it is, without markup, colours or breaks, and with nothing that steers a terminal."""
    console.print(harmless(line), markup=False, highlight=False, emoji=False, soft_wrap=True)


class ConsoleHandler(logging.Handler):
    """Log records as lines of a console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(logging.Formatter("%(levelname).1s %(asctime)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        tell(self._console, self.format(record))


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
def _handling(handler: logging.Handler, ours: str, theirs: int) -> Iterator[None]:
    root = logging.getLogger()
    before, others = root.level, [each for each in root.handlers if _prints(each)]
    for other in others:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(theirs)
    logging.getLogger(_OURS).setLevel(ours.upper())
    try:
        yield
    except KeyboardInterrupt:
        root.addHandler(logging.NullHandler())  # else Python prints what the runner's threads log as the process ends
        others.clear()  # and so would these
        raise
    finally:
        root.removeHandler(handler)
        for other in others:
            root.addHandler(other)
        root.setLevel(before)


def _prints(handler: logging.Handler) -> bool:
    """True for the handler that a call of logging.info() installs if logging is not set up."""
    return type(handler) is logging.StreamHandler
