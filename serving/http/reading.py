"""Bodies of requests as they come in: how much memory they may take together, and for how long they may come.

A request counts among those that run only once its body is there. Knows bytes and headers; no field of any body.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Self

from starlette.types import Receive, Scope

from .http_errors import BUSY, RETRY_AFTER, HttpError
from .replies import HungUp
from .slots import ClientSlots
from .waiting import at_once_or_within

FREE = 2**16
"""Bytes of a body that count nothing if the body is there at once, or is one of the first that are waited for: short
requests are read whatever others send."""
FREE_BODIES = 1000
"""How many bodies that are waited for have FREE bytes; a client without any has so among twice as many."""
WHOLE_BODY = "millrace.body"
"""Under this name a scope has a function that gives the whole body if it is there, in the place of `receive`; else
None."""
_CLOSE = {"connection": "close"}
_TAKEN = (b"", b"identity")


class BodyMemory:
    """The memory for all bodies that are being read, in bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self.free = ClientSlots(FREE_BODIES)
        """The bodies that are waited for and whose first bytes count nothing."""

    def body(self, client: Hashable) -> Incoming:
        """A client's body that is about to be read; its memory counts until it is closed."""
        return Incoming(self, client)

    def take(self, count: int) -> bool:
        """Whether so many bytes more have room; they are counted then."""
        if self._used + count > self._most:
            return False
        self._used += count
        return True

    def give(self, count: int) -> None:
        """Give back `count` bytes."""
        self._used -= count


class Incoming:
    """One body; the end of a `with` closes it."""

    def __init__(self, memory: BodyMemory, client: Hashable) -> None:
        self.client = client
        """Who sends it (keys.py)."""
        self._memory = memory
        self._data = bytearray()
        self._counted = 0
        self._free = FREE
        self._has_slot = False
        self._limit = ""
        self.names: Mapping[str, str] = {}
        """Our names of what it has by others (naming.py), once that is known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def read(
        self, scope: Scope, receive: Receive, most: int, within: float, *, limit: str = "--max_body_mib"
    ) -> None:
        """Read it whole, in so many seconds. Raises HttpError, the rest unread: 413 for more than `most` bytes, which
        `limit` has set, 415 for one that is compressed, 429 where bodies have no room, 408 for one that takes too long.
        """
        self._limit = limit
        headers = dict(scope["headers"])
        _check_encoding(headers)
        if int(headers.get(b"content-length", b"0")) > most:
            raise _too_large(most, self._limit)
        if (whole := scope[WHOLE_BODY]() if WHOLE_BODY in scope else None) is not None:
            self._add(whole, most)
            return
        self._has_slot = self._memory.free.take(self.client)
        self._free = FREE if self._has_slot else 0
        try:
            await at_once_or_within(within, self._read_all(receive, most))
        except TimeoutError:
            raise _too_slow(within) from None

    async def _read_all(self, receive: Receive, most: int) -> None:
        while await self._read_part(receive, most):
            pass

    async def _read_part(self, receive: Receive, most: int) -> bool:
        """Whether more is to come."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HungUp
        self._add(message.get("body", b""), most)
        return bool(message.get("more_body"))

    def _add(self, part: bytes | bytearray, most: int) -> None:
        self._data += part
        if len(self._data) > most:
            raise _too_large(most, self._limit)
        counted = max(0, len(self._data) - self._free)
        if not self._memory.take(counted - self._counted):
            raise _no_room()
        self._counted = counted

    @property
    def size(self) -> int:
        """Bytes that have come."""
        return len(self._data)

    def data(self) -> bytearray:
        """The whole body, once; not copied."""
        data, self._data = self._data, bytearray()
        return data

    def close(self) -> None:
        """Free the body's memory. A second call does nothing."""
        self._data = bytearray()
        self._memory.give(self._counted)
        self._counted = 0
        if self._has_slot:
            self._memory.free.give(self.client)
            self._has_slot = False


def _too_large(most: int, limit: str) -> HttpError:
    said = f"the body is larger than {most / 2**20:g} MiB ({limit})"
    return HttpError(413, said, code="body_too_large", headers=_CLOSE)


def _too_slow(within: float) -> HttpError:
    said = f"the body did not come within {within:g} s (--body_timeout)"
    return HttpError(408, said, code="body_too_slow", headers=_CLOSE)


def _no_room() -> HttpError:
    said = "the server reads as many bodies as it has memory for (--max_bodies_mib): try again"
    headers = {**_CLOSE, "retry-after": str(RETRY_AFTER)}
    return HttpError(429, said, BUSY, code="too_many_bodies", headers=headers)


def check_encoding(scope: Scope) -> None:
    """Raises HttpError (415) for a body that is compressed."""
    _check_encoding(dict(scope["headers"]))


def _check_encoding(headers: Mapping[bytes, bytes]) -> None:
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in _TAKEN:
        said = f"content-encoding {encoding[:40].decode('latin-1')!r}: takes a body that is not compressed"
        raise HttpError(415, said, code="unsupported_encoding", headers=_CLOSE)
