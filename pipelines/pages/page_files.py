"""Writes pages to files: never over rows, nor over a file that millrace did not make; whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apache_beam.io.filesystems import BeamIOError

from millrace.model_manager.wire.errors import ConfigError, MillraceError
from millrace.transforms.files.file_systems import create, exists, match, remove, rename
from millrace.transforms.files.object_reads import open_file
from millrace.transforms.files.object_stores import is_local

_MARK = b'<meta name="generator" content="millrace">'
"""A line in the head of every page (templates/base.html)."""
_BROKEN = re.compile(rb'<span class="badge bad">(interrupted|failed)<')
"""A badge in the report of a job that did not end (templates/report.html)."""
_HEAD = 4096
"""Bytes of a file that the mark is looked for in."""
_half_written: list[Any] = []
"""Streams into a store, kept: one that is collected goes on writing, for minutes, and no Ctrl-C ends that."""


def check_page(flag: str, path: str, rows: Iterable[str], *, replaces: bool) -> None:
    """Raises ConfigError for a file that a page must not replace.

    `rows`: paths or globs of files that are read. `replaces`: a foreign file may be replaced; `rows` never.
    """
    if not _is_there(flag, path):
        return
    for pattern in rows:
        if any(is_same(path, str(file.path)) for file in match(pattern)):
            raise ConfigError(f"{flag} {path}: is read as rows, and the page would replace it; takes another path")
    if not replaces and not _is_page(flag, path):
        raise ConfigError(
            f"{flag} {path}: is there already, and millrace did not make it; takes another path, or --overwrite, which"
            " replaces it"
        )


def is_same(one: str, other: str) -> bool:
    """Whether two paths name one file, through links too."""
    if not (is_local(one) and is_local(other)):
        return one == other
    with contextlib.suppress(OSError):
        return Path(one).samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def _is_there(flag: str, path: str) -> bool:
    try:
        if not is_local(path):
            return exists(path)
        mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # writing tells the second
        return False
    except (OSError, ValueError, BeamIOError) as error:
        raise ConfigError(f"{flag} {path}: cannot be written: {error}") from None
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{flag} {path}: takes the path of a file, and this is a folder or a device")
    return True


def _is_page(flag: str, path: str) -> bool:
    try:
        with open_file(path) as stream:
            return _MARK in stream.read(_HEAD)
    except (OSError, MillraceError) as error:
        raise ConfigError(f"{flag} {path}: is there already, and cannot be read: {error}") from None


def is_report_of_whole(path: str) -> bool:
    """Whether the file is the report of a job that ended. A report that cannot be read counts as one, and stays."""
    try:
        if not exists(path):
            return False
        with open_file(path) as stream:
            return _BROKEN.search(stream.read()) is None
    except (OSError, MillraceError, BeamIOError):
        return True


def write_page(path: str, html: str) -> None:
    """Write beside and rename; in an object store a file appears when it is closed. A failure leaves nothing."""
    target = f"{path}.{uuid.uuid4().hex}.new" if is_local(path) else path
    begun = list[Any]()
    try:
        with create(target) as stream:
            begun.append(stream)
            stream.write(html.encode("utf-8", "replace"))
        if target != path:
            rename(target, path)
    except BaseException:
        if target != path:
            with contextlib.suppress(Exception):
                remove([target])
        else:
            _half_written.extend(begun)
        raise
