"""Results kept for a retry of the same work, bounded in memory and in age. Knows no client and no clock.

They are kept as they cross processes, which takes a tenth of the memory of Python's objects and can be counted.
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from ..wire.decoding import msgpack_decoder
from ..wire.json_text import canonical
from ..wire.request import Output, Request

_OVERHEAD = 600
"""Bytes that an entry takes beside its message and its request's id, about."""
_encoder, _decoder = msgspec.msgpack.Encoder(), msgpack_decoder(Output)


def fingerprint(request: Request) -> bytes:
    """A hash of everything that the answer depends on."""
    return hashlib.blake2b(canonical(request.work()), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class _Kept:
    fingerprint: bytes
    message: bytes
    since: float
    size: int
    """Bytes that it takes, about."""


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
        message = bytearray()  # `encode` gives bytes with room behind them, which is not seen and stays taken
        _encoder.encode_into(output, message)
        size = _OVERHEAD + sys.getsizeof(request.request_id) + len(message)
        kept = self._kept[key, request.request_id] = _Kept(fingerprint(request), bytes(message), now, size)
        self.size += kept.size
        while self.size > self._max_bytes:
            self._remove(next(iter(self._kept)))

    def find(self, key: str, request: Request) -> Output | None:
        """The output of the same id and work."""
        kept = self._kept.get((key, request.request_id))
        if kept is None or kept.fingerprint != fingerprint(request):
            return None
        return _decoder.decode(kept.message)

    def expire(self, now: float) -> None:
        """Give up what is too old."""
        while self._kept and now - next(iter(self._kept.values())).since >= self._max_age:
            self._remove(next(iter(self._kept)))

    def _remove(self, name: tuple[str, str]) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self.size -= kept.size
