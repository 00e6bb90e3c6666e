"""Files in the cache folder that one process keeps for later ones: written whole, the last written ones kept.

Knows nothing of what they hold.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MOST_KEPT = 1024


def keep(file: Path, content: bytes) -> None:
    """Write a file of a folder that holds nothing else; raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    _write_atomically(file, content)
    _evict_oldest(file.parent)


def keep_checked(file: Path, content: bytes) -> None:
    """The same, with a checksum before the content."""
    keep(file, _checksum(content) + b"\n" + content)


def read_checked(file: Path) -> bytes | None:
    """What `keep_checked` wrote; None if it is not there, or damaged."""
    try:
        checksum, _, content = file.read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if checksum == _checksum(content) else None


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _write_atomically(file: Path, content: bytes) -> None:
    """Write all or nothing, whoever reads the file meanwhile."""
    descriptor, name = tempfile.mkstemp(prefix=".", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
        Path(name).replace(file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _evict_oldest(folder: Path) -> None:
    """Remove files beyond the last written ones of a folder."""
    kept = sorted(_with_times(folder))
    for _, file in kept[:-_MOST_KEPT]:
        file.unlink(missing_ok=True)


def _with_times(folder: Path) -> Iterator[tuple[int, Path]]:
    for file in folder.iterdir():
        try:
            yield file.stat().st_mtime_ns, file
        except FileNotFoundError:
            continue  # another process removed it
