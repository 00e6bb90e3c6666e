"""The manager's log on its standard error, which cannot grow without bound. Knows no event."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

MOST_BYTES = 8 * 2**20
_MOST_CHARACTERS = 2000
_FORMAT = "%(asctime)s %(message)s"


class OneLine(logging.Formatter):
    """A record's message as one line, cut and escaped: clients' names and errors are in it. A traceback has its own
    lines.
    """

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line."""
        line = super().formatMessage(record)
        shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line[:_MOST_CHARACTERS])
        return shown if len(line) <= _MOST_CHARACTERS else f"{shown} … ({len(line)} characters)"


class BoundedLog(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error; where that is the log's file, keeps the last half of MOST_BYTES once it has more."""

    def __init__(self, path: Path) -> None:
        super().__init__(sys.stderr)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        super().emit(record)
        try:
            self._cut()
        except OSError:
            self.handleError(record)

    def _cut(self) -> None:
        """Drop what is old. The file is opened for appending, so the next line comes behind what is left."""
        written = os.fstat(self.stream.fileno())
        if written.st_size <= MOST_BYTES or not os.path.samestat(written, self._path.stat()):
            return
        last = self._path.read_bytes()[-MOST_BYTES // 2 :].partition(b"\n")[2]
        os.ftruncate(self.stream.fileno(), 0)
        os.write(self.stream.fileno(), last)
