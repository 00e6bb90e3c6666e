"""Reading files of an object store as they are stored: no byte is missing, and no byte is changed.

Beam's reader of Cloud Storage takes a body that ends early for the end of the file, and compares no checksum, since it
reads in parts. Here the size is known beforehand: a part that is short is fetched again. What is read from its
beginning to its end is compared with the store's checksum of the whole. Where rows go on before that, a `Fingerprint`
says what each block is: it is taken in one reading that is compared so, and no byte is given that does not match it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import logging
import os
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

import google_crc32c
import msgspec
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from millrace.model_manager.wire.errors import StorageError

from .object_stores import explained, is_local, repeated

BLOCK_BYTES = 2**20
_MAX_FINGERPRINTED = 2**30
"""Larger files are not read before they are read; whether their bytes are right is then TLS's business."""
_ATTEMPTS = 3
_CHECKSUM_BYTES = 4

_log = logging.getLogger(__name__)


class Fingerprint(msgspec.Struct, frozen=True):
    """The size and checksums of a file."""

    size: int
    checksums: bytes
    """CRC32C of each block of 1 MiB, one after the other."""

    def matches(self, index: int, block: bytes) -> bool:
        """Whether `block` has the bytes of the block at `index`."""
        start = index * _CHECKSUM_BYTES
        return self.checksums[start : start + _CHECKSUM_BYTES] == _encoded(google_crc32c.value(block))


def open_file(path: str, fingerprint: Fingerprint | None = None) -> BinaryIO:
    """A seekable stream of a file as it is stored; raises StorageError, there or when read, rather than give less."""
    if is_local(path):
        return _open(path)
    return cast(BinaryIO, io.BufferedReader(ObjectReader(path, fingerprint), BLOCK_BYTES))


def take_fingerprint(path: str) -> Fingerprint | None:
    """Read all of a file to know its blocks; None on a disk, for a large file, and where the store has no CRC32C."""
    if is_local(path):
        return None
    stored = _look_up(path)
    if not stored.checksum:
        return None
    if stored.size > _MAX_FINGERPRINTED:
        _log.warning("%s is over 1 GiB: it is read in ranges whose checksums nobody knows", path)
        return None
    return repeated(path, "read", lambda: _fingerprint(path, stored))


def _fingerprint(path: str, stored: _Stored) -> Fingerprint:
    with ObjectReader(path, stored=stored) as stream:
        blocks = range(0, stored.size, BLOCK_BYTES)
        checksums = [_encoded(google_crc32c.value(stream.block(index))) for index in range(len(blocks))]
    return Fingerprint(stored.size, b"".join(checksums))


class _Stored(NamedTuple):
    size: int
    checksum: str
    """CRC32C of the whole in base64, as the store has it; empty where it has none."""


def _look_up(path: str) -> _Stored:
    """Size and checksum of a file, asked from the store now."""
    files = FileSystems.get_filesystem(path)
    size = repeated(path, "read", lambda: files.metadata(path).size_in_bytes)
    has_checksum = FileSystems.get_scheme(path) == "gs"
    return _Stored(size, (repeated(path, "read", lambda: files.checksum(path)) or "") if has_checksum else "")


def _open(path: str) -> BinaryIO:
    return cast(BinaryIO, FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED))


def _encoded(checksum: int) -> bytes:
    return checksum.to_bytes(_CHECKSUM_BYTES, "big")


class ObjectReader(io.RawIOBase):
    """Whole blocks of a file. A block that is short or has another checksum is fetched again."""

    mode = "rb"

    def __init__(self, path: str, fingerprint: Fingerprint | None = None, stored: _Stored | None = None) -> None:
        """`stored`: what the store says of the file, if that is known."""
        super().__init__()
        self._path = path
        self._fingerprint = fingerprint
        self._stored = _Stored(fingerprint.size, "") if fingerprint else stored or _look_up(path)
        self._position = 0
        self._index, self._block = -1, b""
        self._sum, self._summed = 0, 0
        self._stream: Any = None

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next byte is."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go there; beyond the end there is nothing."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._stored.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Up to a buffer full, no further than to the end of a block; 0 at the end of the file."""
        if self._position >= self._stored.size:
            return 0
        block = self.block(self._position // BLOCK_BYTES)
        start = self._position % BLOCK_BYTES
        piece = block[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def close(self) -> None:
        """Let go of the connection."""
        self._disconnect()
        super().close()

    def block(self, index: int) -> bytes:
        """The bytes of a block; raises StorageError where they do not come as they are stored."""
        if index != self._index:
            self._block = self._right_block(index)
            self._index = index
            self._add(index, self._block)
        return self._block

    def _right_block(self, index: int) -> bytes:
        assert 0 <= index * BLOCK_BYTES < self._stored.size, "a block of the file"
        start = index * BLOCK_BYTES
        size = min(BLOCK_BYTES, self._stored.size - start)
        for _ in range(_ATTEMPTS):
            block = self._fetch(start, size)
            if len(block) == size and (self._fingerprint is None or self._fingerprint.matches(index, block)):
                return block
            _log.warning(
                "%s: bytes from %d on do not arrive as they are stored, fetching them again", self._path, start
            )
            self._start_again()
        raise self._wrong(f"bytes {start} to {start + size} do not arrive as they are stored")

    def _fetch(self, start: int, size: int) -> bytes:
        pieces: list[bytes] = []
        with explained(self._path, "read"):
            self._stream = self._stream or repeated(self._path, "opened", partial(_open, self._path))
            self._stream.seek(start)
            while size > 0 and (piece := self._stream.read(size)):
                pieces.append(piece)
                size -= len(piece)
        return b"".join(pieces)

    def _start_again(self) -> None:
        """Connect again. The object under this name must be the one that was read before."""
        self._disconnect()
        if self._fingerprint is None and _look_up(self._path) != self._stored:
            raise self._wrong("is not what it was")

    def _disconnect(self) -> None:
        with contextlib.suppress(Exception):
            if self._stream is not None:
                self._stream.close()
        self._stream = None

    def _add(self, index: int, block: bytes) -> None:
        """Sum up what is read in order, and at the end of the file compare."""
        if not self._stored.checksum or self._summed != index * BLOCK_BYTES:
            return
        self._sum = google_crc32c.extend(self._sum, block)
        self._summed += len(block)
        if (
            self._summed == self._stored.size
            and base64.b64encode(_encoded(self._sum)).decode() != self._stored.checksum
        ):
            raise self._wrong("does not match its checksum")

    def _wrong(self, what: str) -> StorageError:
        return StorageError(
            f"{self._path}: {what}; it was overwritten since it was first seen, or is damaged on its way"
        )
