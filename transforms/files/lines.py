"""Lines of a byte stream, each with its offset; knows no text encoding and no compression.

A file can be cut into ranges anywhere: a line belongs to the range that holds its first byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_CHUNK = 1 << 20


class Line(NamedTuple):
    """One line without its line end; of a line over the limit only the beginning."""

    offset: int
    """Offset of its first byte in the (uncompressed) stream."""
    data: bytes
    too_long: bool = False


def read_lines(stream: BinaryIO, start: int = 0, stop: int | None = None, *, limit: int) -> Iterator[Line]:
    """The lines whose first byte lies in [start, stop), none held beyond `limit` bytes; blank lines too.

    `start` > 0 needs a seekable stream.
    """
    if start:
        stream.seek(start - 1)
    lines = _all_lines(stream, max(start - 1, 0), limit)
    if start:
        next(lines, None)  # ends at the first line end at or after start - 1: the first line of ours begins behind it
    for line in lines:
        if stop is not None and line.offset >= stop:
            return
        yield line


def _all_lines(stream: BinaryIO, offset: int, limit: int) -> Iterator[Line]:
    held, dropped = b"", 0
    while chunk := stream.read(_CHUNK):
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            if held or dropped or len(piece) > limit:
                held, dropped = _grown(held, dropped, piece, limit)
                yield _line(offset, held, dropped, limit)
                offset += len(held) + dropped + 1
                held, dropped = b"", 0
            else:  # as almost all lines are
                yield Line(offset, piece.removesuffix(b"\r"))
                offset += len(piece) + 1
        held, dropped = _grown(held, dropped, rest, limit)
    if held or dropped:
        yield _line(offset, held, dropped, limit)


def _grown(held: bytes, dropped: int, piece: bytes, limit: int) -> tuple[bytes, int]:
    room = max(limit + 1 - len(held), 0)  # one more than the limit: for the carriage return of a line end
    return held + piece[:room], dropped + max(len(piece) - room, 0)


def _line(offset: int, held: bytes, dropped: int, limit: int) -> Line:
    data = held if dropped else held.removesuffix(b"\r")
    return Line(offset, data[:limit], too_long=bool(dropped) or len(data) > limit)
