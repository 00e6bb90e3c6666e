"""A LoRA adapter's files: where they are, and their digest. Reads no weights beyond their headers."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..wire.request import Adapter
from .contents import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from .resolving import resolve_adapter


def find_adapter(name: str) -> Adapter:
    """The adapter of that name: a folder, a hub name or gs://bucket/folder. Raises as `resolve` does."""
    return find_stamped(name)[0]


def find_stamped(name: str) -> tuple[Adapter, object]:
    """The same, and its stamp from before its files were read: who writes them meanwhile changes it."""
    folder = resolve_adapter(name).absolute()
    before = stamp(folder)
    with (folder / ADAPTER_WEIGHTS).open("rb") as weights:
        digest = _joined((folder / ADAPTER_CONFIG).read_bytes(), hashlib.file_digest(weights, "sha256").digest())
    return Adapter(name, str(folder), digest), before


def digest_of(config: bytes, weights: bytes) -> str:
    """The digest of an adapter's two files."""
    return _joined(config, hashlib.sha256(weights).digest())


def stamp(folder: Path) -> tuple[tuple[int, int], ...]:
    """Changes, as far as the file system tells, when the adapter in `folder` is written; raises OSError."""
    found = [(folder / name).stat() for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
    return tuple((each.st_mtime_ns, each.st_size) for each in found)


def _joined(config: bytes, weights_digest: bytes) -> str:
    return hashlib.sha256(hashlib.sha256(config).digest() + weights_digest).hexdigest()
