"""Patterns of `watch:`: the paths that one matches, and the folder they are below. Looks at no file.

Knows how the two kinds of file systems read a pattern: a disk as `glob` does, an object store as Beam does.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import re
from pathlib import Path

from apache_beam.io.filesystem import FileSystem

from millrace.model_manager.wire.errors import ConfigError, StorageError
from millrace.transforms.addresses import WatchedFiles
from millrace.transforms.files.file_systems import match
from millrace.transforms.files.object_stores import is_local

_WILD = re.compile(r"[*?[]")
_log = logging.getLogger(__name__)


def check_place(watched: WatchedFiles) -> None:
    """Warns of a local folder that is not there, and raises ConfigError for a store that has no such place.

    A folder may be made later; a bucket that cannot be listed is a mistake.
    """
    if watched.is_local:
        folder = fixed_folder(watched.path)
        if not folder.is_dir():
            _log.warning("no such folder yet: %s; waiting for it", folder)
        return
    try:
        match(watched.path)
    except StorageError as error:
        raise ConfigError(f"--input {watched}: {error}") from None


def is_watched(path: str, pattern: str) -> bool:
    """Whether a look at the pattern would find this file, were it there."""
    if is_local(path) != is_local(pattern):
        return False
    if not is_local(path):
        return re.match(FileSystem.translate_pattern(pattern), path) is not None
    fixed, wild = _split(pattern)
    return _matches([*_real(fixed), *wild], _real(path))


def _real(path: str) -> list[str]:
    return list(Path(os.path.realpath(path)).parts)


def _split(pattern: str) -> tuple[str, list[str]]:
    """The path before the first part with a wildcard, and the parts from there on."""
    parts = pattern.split("/")
    first = next((number for number, part in enumerate(parts) if _WILD.search(part)), len(parts))
    fixed = "/".join(parts[:first]) or ("/" if pattern.startswith("/") else ".")
    return fixed, [part for part in parts[first:] if part]


def fixed_folder(pattern: str) -> Path:
    """The folder below which all lies that a local pattern matches."""
    fixed, wild = _split(pattern)
    return Path(fixed) if wild else Path(fixed).parent


def _matches(pattern: list[str], path: list[str]) -> bool:
    """Whether a path matches as in glob: `**` is any number of folders, and no wildcard is a name's leading dot."""
    if not pattern or not path:
        return not pattern and not path
    if pattern == ["**"]:
        return not any(map(_is_hidden, path))
    if pattern[0] == "**":
        return _matches(pattern[1:], path) or (not _is_hidden(path[0]) and _matches(pattern, path[1:]))
    if _WILD.match(pattern[0]) and _is_hidden(path[0]):
        return False
    return fnmatch.fnmatchcase(path[0], pattern[0]) and _matches(pattern[1:], path[1:])


def _is_hidden(name: str) -> bool:
    return name.startswith(".")
