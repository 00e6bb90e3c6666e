"""Which rows are answered: a sorted table of hashes, 24 bytes a row, in one buffer. Reads no output.

An entry has 16 bytes of hash for the row's id, and 8 for what the row says.
"""

from __future__ import annotations

import atexit
import binascii
import bisect
import contextlib
import hashlib
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from ..files.temporary_folders import temporary_folder

_DIGEST = 16
_HASH = 8
ENTRY = _DIGEST + _HASH
NOT_KNOWN = bytes(_HASH)
"""The hash of what a row says, in outputs that do not have it."""
_ENTRIES = np.dtype(f"S{ENTRY}")
"""Compares as bytes do. What it takes for padding, zeros at the end, is equal in entries that are equal."""
_NEAR = 8
"""Entries in a bucket, about."""


def entry(identity: str, prompt_hash: str | None) -> bytes:
    """The entry of a row. `prompt_hash`: 16 hex digits, as a Completion has it; None or empty if it is not known."""
    return _digest(identity) + hash_of(prompt_hash)


def hash_of(prompt_hash: str | None) -> bytes:
    """What an entry has of a prompt_hash; raises ValueError where that is not hex."""
    if not prompt_hash:
        return NOT_KNOWN
    try:
        return binascii.unhexlify(prompt_hash.zfill(2 * _HASH))[:_HASH]  # `bytes.fromhex` would skip blanks
    except ValueError:
        raise ValueError(f"prompt_hash: {prompt_hash!r:.80}, takes hex digits") from None


def _digest(identity: str) -> bytes:
    return hashlib.blake2b(identity.encode(), digest_size=_DIGEST).digest()


def in_order(entries: bytearray | mmap.mmap) -> npt.NDArray[np.bytes_]:
    """Sort the entries where they are. The buffer cannot grow while the array is held."""
    table = as_entries(entries)
    table.sort()
    return table


def as_entries(buffer: bytes | bytearray | mmap.mmap) -> npt.NDArray[np.bytes_]:
    """The entries of a buffer, without a copy."""
    return np.frombuffer(buffer, dtype=_ENTRIES)


class AnsweredRows:
    """A sorted table, and where to look in it."""

    def __init__(self, entries: bytes | bytearray | mmap.mmap) -> None:
        """`entries`: sorted, as `in_order` leaves them."""
        self._entries = entries
        table = as_entries(entries)
        bits = max(1, (len(table) // _NEAR).bit_length())
        self._shift = 64 - bits
        firsts = (np.arange(2**bits, dtype=np.uint64) << np.uint64(self._shift)).astype(">u8").view("S8")
        begins = np.append(np.searchsorted(table, firsts.astype(_ENTRIES)), len(table)) * ENTRY
        self._begins = memoryview(begins.astype(np.int64).tobytes()).cast("q")
        """Where in `_entries` those begin whose hash begins with these bits."""

    @classmethod
    def opened(cls, path: str) -> Self:
        """The table of a file that `kept` made. Processes that open it share its memory."""
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return cls(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")

    def find(self, identity: str) -> int:
        """Where the first row of an id is, in bytes; -1 if none is answered."""
        digest = _digest(identity)
        at, end = self._bucket(digest)
        while (at := self._entries.find(digest, at, end)) >= 0 and at % ENTRY:
            at += 1
        return at

    def answers(self, at: int, said: bytes) -> bool:
        """Whether a row of the id whose first row is there answers a prompt that says `said` (`hash_of`).

        It does if it says the same, or if nobody knows what it said. An id may have any number of rows.
        """
        row = bytes(self._entries[at : at + ENTRY])
        if row[_DIGEST:] in (NOT_KNOWN, said):  # NOT_KNOWN is first among the hashes of an id
            return True
        rows, sought = range(at, self._bucket(row)[1], ENTRY), row[:_DIGEST] + said
        number = bisect.bisect_left(rows, sought, key=lambda at: bytes(self._entries[at : at + ENTRY]))
        return number < len(rows) and self._entries[rows[number] : rows[number] + ENTRY] == sought

    def _bucket(self, entry: bytes) -> tuple[int, int]:
        """Where the entries are that begin as this one does."""
        bucket = int.from_bytes(entry[:8], "big") >> self._shift
        return self._begins[bucket], self._begins[bucket + 1]


def kept(parts: Iterable[bytearray]) -> str:
    """Write a sorted table of all parts' entries to a file that the processes of this machine open; returns its path.

    The file is removed when this process ends. If this process is killed, the next call of any process removes it.
    The parts are joined and sorted in the file, so memory holds the caller's parts and no copy of them.
    """
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(temporary_folder("answered")) / "rows"
        with path.open("w+b") as file:
            for part in parts:
                file.write(part)
            if size := file.tell():
                file.flush()
                with mmap.mmap(file.fileno(), size) as table:
                    in_order(table)
        atexit.register(stack.pop_all().close)
    return str(path)
