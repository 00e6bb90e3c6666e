"""A model's revision, which tells its contents from others under the same name, in the words of its kind of place.

    a hub's commit        9f2c…, 40 digits       of org/name, whatever branch or tag was asked for
    bucket-<16 digits>    a hash of the names, sizes, generations and checksums of the objects that were fetched
    folder-<16 digits>    a hash of the folder's files: all of the small ones, of the weights every tensor's name, type,
                          shape and place, and three pieces of its values, of another engine's format pieces at even
                          distances; of a GGUF file's folder, that file alone

The pieces stand for the whole so that a client need not read gigabytes to open a model. Training changes some value of
each; an edit of single values between them goes unseen.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..wire.errors import ModelCorrupt
from .contents import ENGINE_FILES, WANTED, is_wanted
from .gguf import gguf_files, is_gguf, read_gguf
from .sources import Bucket, ModelSource
from .weight_headers import Header, read_header

_COMMIT = re.compile(r"[0-9a-f]{40}")
_FOLDER = "folder-"
_DIGITS = 16
_WEIGHTS = ".safetensors"
_OTHER_WEIGHTS = ".bin"
_PIECE = 1024
"""Bytes of each of a tensor's three pieces."""
_EVEN_PIECES = 1024
"""Pieces of a file whose tensors are not told apart here."""


def revision_of(source: ModelSource, folder: Path) -> str:
    """The revision of the model that was found in `folder`; raises OSError where a file cannot be read."""
    if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
        return folder.name  # so the hub's cache names it
    if isinstance(source, Bucket):
        return f"bucket-{folder.name}"  # snapshots.py names it by the hash of its manifest
    return _FOLDER + _digest_of(source.name, folder)


def check_revision(model: str, folder: Path, revision: str | None) -> None:
    """Raise ModelCorrupt if a folder changed after its revision was computed: its answers would carry that name."""
    if revision is None or not revision.startswith(_FOLDER):
        return
    if (found := _FOLDER + _digest_of(model, folder)) != revision:
        raise ModelCorrupt(
            f"{model}: the files changed while jobs used them ({revision} is now {found});"
            " put other weights into another folder, and name that"
        )


def _digest_of(model: str, folder: Path) -> str:
    digest = hashlib.sha256()
    for path in gguf_files(model, folder) if is_gguf(model) else _wanted(folder):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        for part in _parts(path):
            digest.update(part)
    return digest.hexdigest()[:_DIGITS]


def _wanted(folder: Path) -> list[Path]:
    known = (*WANTED, *ENGINE_FILES)
    return sorted(path for path in folder.iterdir() if path.is_file() and is_wanted(path.name, known))


def _parts(path: Path) -> Iterator[bytes]:
    """A small file; or the header of weights and, in file order, pieces of their tensors. Damage is found elsewhere."""
    if is_gguf(path.name):
        gguf, size = read_gguf(path), path.stat().st_size
        yield from _pieces(path, gguf.size, zip(gguf.offsets, [*gguf.offsets[1:], size], strict=True))
    elif path.name.endswith(_WEIGHTS):
        header = read_header(path)
        begin = len(header.raw)
        yield from _pieces(path, begin, ((begin + at, begin + end) for at, end in sorted(_places(header))))
    elif path.name.endswith(_OTHER_WEIGHTS):
        size = path.stat().st_size
        apart = max(3 * _PIECE, size // _EVEN_PIECES)
        yield from _pieces(path, 0, ((at, min(at + apart, size)) for at in range(0, size, apart)))
    else:
        yield path.read_bytes()


def _pieces(path: Path, header_size: int, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield file.read(header_size)
        for begin, end in places:
            for place in (begin, (begin + end) // 2, max(begin, end - _PIECE)):
                file.seek(place)
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
