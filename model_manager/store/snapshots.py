"""The cache of fetched folders: what is in it is whole and verified, and one process fetches while the others wait.

    <home>/<digest>/          a whole folder; its name is the digest of its manifest
    <home>/<digest>/.manifest.json
    <home>/<digest>.partial/  a folder being filled: files under their own name are verified, `*.part` are not
    <home>/lock               held while a folder is filled; the kernel releases it when its holder dies

A changed source has another digest and so another folder: who still reads the old one is not disturbed. Knows no
network: the caller says what the files are and how to get them.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import google_crc32c
import msgspec

from ..wire.decoding import json_decoder
from ..wire.errors import ModelCorrupt

_MANIFEST = ".manifest.json"
_PARTIAL = ".partial"
_PART = ".part"
_READ_BYTES = 2**20
_ATTEMPTS = 3

_log = logging.getLogger(__name__)


class RemoteFile(msgspec.Struct, frozen=True):
    """A file at its source: a line of the manifest."""

    name: str
    size: int
    """Bytes."""
    generation: str
    """Changes whenever the source is written."""
    crc32c: str
    """Base64 of the big-endian checksum, as cloud storage gives it."""


Download = Callable[[Sequence[tuple[RemoteFile, Path]], Callable[[RemoteFile], None]], None]
"""Fetches each file to the path beside it, and calls the function with it once all its bytes are there."""


def snapshot(home: Path, files: Sequence[RemoteFile], download: Download) -> Path:
    """The folder under `home` that holds exactly `files`, filled by `download` if it is not there yet.

    Raises ModelCorrupt if what arrives does not match its checksum time and again; what the download raises passes
    through. Then what was verified is kept for the next attempt, and nothing else.
    """
    manifest = msgspec.json.encode(sorted(files, key=lambda file: file.name))
    folder = home / hashlib.sha256(manifest).hexdigest()[:16]
    if not _is_whole(folder, files):
        home.mkdir(parents=True, exist_ok=True)
        with _exclusive(home / "lock"):
            if not _is_whole(folder, files):
                _fill(folder, files, manifest, download)
    return folder


def _is_whole(folder: Path, files: Sequence[RemoteFile]) -> bool:
    """True if the folder is whole: it was when it got its name, but files may have been shortened or removed since."""
    if not folder.is_dir():
        return False
    paths = [(file, folder / file.name) for file in files]
    return all(path.is_file() and path.stat().st_size == file.size for file, path in paths)


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fill(folder: Path, files: Sequence[RemoteFile], manifest: bytes, download: Download) -> None:
    partial = folder.with_name(folder.name + _PARTIAL)
    _start(folder, partial)
    for file in files:
        _take_from_older(file, partial)
    missing = [file for file in files if not _matches(partial / file.name, file)]
    _log.info("fetching %d files, %.1f MiB, to %s", len(missing), sum(f.size for f in missing) / 2**20, folder)
    try:
        _fetch(missing, partial, download)
    except BaseException:
        _drop_unverified(partial)
        raise
    (partial / _MANIFEST).write_bytes(manifest)
    partial.rename(folder)


def _fetch(files: Sequence[RemoteFile], partial: Path, download: Download) -> None:
    """Download each file, and again if it arrives damaged."""
    missing = files
    for _ in range(_ATTEMPTS):
        download([(file, partial / (file.name + _PART)) for file in missing], lambda file: _accept(partial, file))
        missing = [file for file in missing if not (partial / file.name).is_file()]
        if not missing:
            return
    raise ModelCorrupt(f"{missing[0].name} does not match its checksum after {_ATTEMPTS} downloads; upload it again")


def _drop_unverified(partial: Path) -> None:
    for part in partial.glob(f"*{_PART}"):
        part.unlink()
    if not any(partial.iterdir()):
        partial.rmdir()


def _start(folder: Path, partial: Path) -> None:
    """An empty folder, or what a killed process has left of it."""
    for other in folder.parent.glob(f"*{_PARTIAL}"):
        if other != partial:
            shutil.rmtree(other)
    if folder.exists():
        _log.warning("%s is damaged and is fetched again", folder)
        shutil.rmtree(partial, ignore_errors=True)
        folder.rename(partial)
    partial.mkdir(exist_ok=True)


def _take_from_older(file: RemoteFile, partial: Path) -> None:
    """Link the file from another folder that has the same generation."""
    for manifest in partial.parent.glob(f"*/{_MANIFEST}"):
        source, target = manifest.with_name(file.name), partial / file.name
        if target.exists() or not source.is_file():
            continue
        if file in json_decoder(list[RemoteFile]).decode(manifest.read_bytes()):
            os.link(source, target)


def _accept(partial: Path, file: RemoteFile) -> None:
    """Give a verified file its name once it is on disk; a damaged one gets none."""
    part = partial / (file.name + _PART)
    if not _matches(part, file):
        _log.warning("%s does not match its checksum", part)
        return
    with part.open("rb") as opened:
        os.fsync(opened.fileno())
    part.replace(partial / file.name)


def _matches(path: Path, file: RemoteFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    checksum = 0
    with path.open("rb") as opened:
        while block := opened.read(_READ_BYTES):
            checksum = google_crc32c.extend(checksum, block)
    return base64.b64encode(checksum.to_bytes(4, "big")).decode() == file.crc32c
