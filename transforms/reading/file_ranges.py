"""Files → ranges that workers read in parallel: bytes of lines, row groups of Parquet, whole files of the rest."""

from __future__ import annotations

import logging
import os.path
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
from apache_beam.io.filesystem import FileMetadata
from msgspec.structs import replace

from millrace.model_manager.wire.errors import ConfigError, counted

from ..files.file_systems import match
from ..files.formats import InputFormat, format_extension, input_format, is_compressed
from ..files.input_files import is_damage
from ..files.object_reads import Fingerprint, open_file, take_fingerprint
from ..files.object_stores import is_local

MAX_RANGE_BYTES = 16 * 2**20
_MIN_RANGE_BYTES = 64 * 2**10
_RANGES_PER_FILE = 32
_log = logging.getLogger(__name__)


class FileRange(msgspec.Struct, frozen=True):
    """What one worker reads at a time."""

    path: str
    format: InputFormat
    start: int = 0
    """First byte, or first row group."""
    stop: int | None = None
    """One past the last; None is the end."""
    first_row: int = 0
    """Parquet: how many rows of the file are before the range."""
    fingerprint: Fingerprint | None = None
    """What the file's bytes are, where that is known."""


def match_files(patterns: list[str], flag: str = "--input") -> list[FileMetadata]:
    """The files of all patterns, each once, in the order of their names; ConfigError for a pattern without any.

    A file with several names has the first one that a pattern gave it. `flag`: what an error says that the patterns
    are given by.
    """
    return _first_names(_by_file(patterns, flag))


def match_files_and_warn(patterns: list[str]) -> list[FileMetadata]:
    """Match files as match_files does, and warn of files that are matched more than once."""
    found = _by_file(patterns, "--input")
    repeated = [names for names in found.values() if len(names) > 1]
    if repeated:
        names = " and ".join(str(file.path) for file in repeated[0][:2])
        others = f", and so {counted(len(repeated) - 1, 'other file')}" if repeated[1:] else ""
        _log.warning("--input names one file as %s%s: each file is read once", names, others)
    return _first_names(found)


def _first_names(found: dict[str, list[FileMetadata]]) -> list[FileMetadata]:
    return sorted((names[0] for names in found.values()), key=lambda file: str(file.path))


def _by_file(patterns: list[str], flag: str) -> dict[str, list[FileMetadata]]:
    """Each file, by where it really is, under all names that the patterns match."""
    found: dict[str, list[FileMetadata]] = {}
    for pattern in patterns:
        files = match(pattern)
        if not files:
            raise ConfigError(f"{flag} {pattern}: {_why_none(pattern)}")
        for file in files:
            place = os.path.realpath(file.path) if is_local(pattern) else str(file.path)
            found.setdefault(place, []).append(file)
    return found


def _why_none(pattern: str) -> str:
    folder = pattern.rstrip("/")
    inside = match(f"{folder}/*")
    if inside:
        known = next(filter(None, (format_extension(file.path) for file in inside)), "")
        return f"is a folder; takes files or globs, for example '{folder}/*{known}'"
    if is_local(folder) and Path(folder).is_dir():
        return (
            "is an empty folder; takes files or globs"
            if not any(Path(folder).iterdir())
            else "is a folder without files; takes globs"
        )
    return "no such file; takes files or globs"


def split_file(file: FileMetadata, named_format: str | None = None) -> Iterator[FileRange]:
    """The ranges of a file; together they hold each of its rows once."""
    form = input_format(file.path, named_format)
    whole = FileRange(file.path, form, fingerprint=take_fingerprint(file.path))
    if is_compressed(file.path) or form in ("csv", "file"):
        yield whole
    elif form == "parquet":
        yield from _row_groups(whole)
    else:
        size = min(max(file.size_in_bytes // _RANGES_PER_FILE, _MIN_RANGE_BYTES), MAX_RANGE_BYTES)
        for start in range(0, file.size_in_bytes, size):
            yield replace(whole, start=start, stop=start + size)


def _row_groups(whole: FileRange) -> Iterator[FileRange]:
    with open_file(whole.path, whole.fingerprint) as stream:
        try:
            metadata = pq.ParquetFile(stream).metadata
        except Exception as error:
            if not is_damage(error):
                raise
            yield whole  # who reads it meets the same error, and has a place to report it
            return
        first_row = 0
        for group in range(metadata.num_row_groups):
            yield replace(whole, start=group, stop=group + 1, first_row=first_row)
            first_row += metadata.row_group(group).num_rows
