"""Results kept for a retry of the same work, bounded in memory and in age. Knows no client and no clock."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from ..wire.canonical import canonical
from ..wire.messages import Output, Request

_OVERHEAD = 512
"""Bytes that an entry takes beside its numbers, about."""
_BYTES_PER_NUMBER = 16
"""About the bytes of a token id in a Python list."""


def fingerprint(request: Request) -> bytes:
    """A hash of everything that the answer depends on."""
    return hashlib.blake2b(canonical(request.work()), digest_size=16).digest()


def _size(output: Output) -> int:
    """Bytes that an output takes, about."""
    numbers = len(output.token_ids) + len(output.forced)
    numbers += sum(each.num_numbers for each in (output.logprobs, output.prompt_logprobs) if each is not None)
    return _OVERHEAD + _BYTES_PER_NUMBER * numbers + len(output.embedding or b"") + len(output.text)


@dataclass(frozen=True)
class _Kept:
    fingerprint: bytes
    output: Output
    size: int
    since: float


class KeptResults:
    """Outputs by (model, request id), the oldest given up first."""

    def __init__(self, max_bytes: float, max_age: float) -> None:
        """`max_age` in seconds."""
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self.size = 0
        """Bytes, about."""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, key: str, request: Request, output: Output, now: float) -> None:
        """Keep an output, giving up old ones where the bound asks for it."""
        self._remove((key, request.request_id))
        size = _size(output)
        self._kept[key, request.request_id] = _Kept(fingerprint(request), output, size, now)
        self.size += size
        while self.size > self._max_bytes:
            self._remove(next(iter(self._kept)))

    def find(self, key: str, request: Request) -> Output | None:
        """The output of the same id and work."""
        kept = self._kept.get((key, request.request_id))
        return kept.output if kept is not None and kept.fingerprint == fingerprint(request) else None

    def expire(self, now: float) -> None:
        """Give up what is too old."""
        while self._kept and now - next(iter(self._kept.values())).since >= self._max_age:
            self._remove(next(iter(self._kept)))

    def _remove(self, name: tuple[str, str]) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self.size -= kept.size
