"""What tells a model's contents from others under the same name: its revision, in the words of its kind of place.

    a hub's commit        9f2c…, 40 digits       of org/name, whatever branch or tag was asked for
    bucket-<16 digits>    a hash of the names, sizes, generations and checksums of the objects that were fetched
    folder-<16 digits>    a hash of the folder's files: all of the small ones, of the weights every tensor's name, type,
                          shape and place, and three pieces of its values

The pieces stand for the whole so that a client need not read gigabytes to open a model. Training changes some value of
each; an edit of single values between them goes unseen.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from ..wire.errors import ModelCorrupt
from .contents import is_wanted
from .footprint import Header, read_header
from .resolving import in_bucket

_COMMIT = re.compile(r"[0-9a-f]{40}")
_FOLDER = "folder-"
_DIGITS = 16
_WEIGHTS = ".safetensors"
_PIECE = 1024
"""Bytes of each of a tensor's three pieces."""


def revision_of(model: str, folder: Path) -> str:
    """The revision of the model that `resolve` found in `folder`; raises OSError where a file cannot be read."""
    if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
        return folder.name  # so the hub's cache names it
    if in_bucket(model):
        return f"bucket-{folder.name}"  # snapshots.py names it by the hash of its manifest
    return _FOLDER + _digest_of(folder)


def check_revision(model: str, folder: Path, revision: str | None) -> None:
    """Raise ModelCorrupt if a folder changed after its revision was computed: its answers would carry that name."""
    if revision is None or not revision.startswith(_FOLDER):
        return
    if (found := _FOLDER + _digest_of(folder)) != revision:
        raise ModelCorrupt(
            f"{model}: the files changed while jobs used them ({revision} is now {found});"
            " put other weights into another folder, and name that"
        )


def _digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file() and is_wanted(path.name)):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        for part in _parts(path) if path.name.endswith(_WEIGHTS) else [path.read_bytes()]:
            digest.update(part)
    return digest.hexdigest()[:_DIGITS]


def _parts(path: Path) -> Iterator[bytes]:
    """A safetensors file's header and, in file order, pieces of its tensors; damage is found elsewhere."""
    header = read_header(path)
    yield header.raw
    with path.open("rb") as file:
        for begin, end in sorted(_places(header)):
            for place in (begin, (begin + end) // 2, max(begin, end - _PIECE)):
                file.seek(len(header.raw) + place)
                yield file.read(min(_PIECE, end - place))


def _places(header: Header) -> Iterator[tuple[int, int]]:
    """Where each tensor's values begin and end; up to the first that does not say it."""
    try:
        for tensor in (header.tensors or {}).values():
            begin, end = map(int, tensor["data_offsets"])
            if 0 <= begin < end:
                yield begin, end
    except (ValueError, KeyError, TypeError):
        return
