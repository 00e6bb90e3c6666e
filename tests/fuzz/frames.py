"""Frames of a connection as fuzz inputs have them: cut apart, changed as values, and put together again."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.fuzz.trees import ODD, mutated

_LENGTH = struct.Struct("!I")


def joined(bodies: Sequence[bytes]) -> bytes:
    """The bodies, each with its length."""
    return b"".join(_LENGTH.pack(len(body)) + body for body in bodies)


def split(data: bytes) -> list[bytes]:
    """The bodies; what has no right length is one body."""
    bodies = []
    while len(data) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data)
        data = data[_LENGTH.size :]
        bodies.append(data[:length])
        data = data[length:]
    return [*bodies, data] if data else bodies


def changed(data: bytes, source: random.Random, others: Sequence[bytes]) -> bytes:
    """Frames with one changed, taken out, doubled, put elsewhere, or one of `others` put in."""
    bodies = split(data) or [b"\x80"]
    place = source.randrange(len(bodies))
    match source.randrange(8):
        case 0:
            del bodies[place]
        case 1:
            bodies.insert(place, bodies[place])
        case 2 | 3:
            bodies.insert(source.randrange(len(bodies) + 1), source.choice(others))
        case 4:
            return joined(source.sample(bodies, len(bodies)))
        case 5:
            whole = joined(bodies)
            return whole[: source.randrange(len(whole) + 1)]
        case _:
            bodies[place] = _changed_body(bodies[place], source)
    return joined(bodies)


def _changed_body(body: bytes, source: random.Random) -> bytes:
    try:
        value: Any = msgspec.msgpack.decode(body)
        return msgspec.msgpack.encode(mutated(value, source, ODD))
    except (msgspec.MsgspecError, ValueError, OverflowError, UnicodeError, TypeError, RecursionError):
        return body[: len(body) // 2]
