"""Counts the values of a JSON body before it is parsed: parsing millions of them would hold up every thread."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..http.http_errors import HttpError

MOST_VALUES = 2**21
"""Most values of any kind in a body. The largest request that the server takes has fewer."""
MOST_LISTS = 2**17
"""Lists and objects; each takes longer than a number."""
_PART = 2**18
"""Bytes that are searched at once: other threads run between two parts."""
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("|\Z)', re.DOTALL)
_REST_OF_TEXT = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*("|\Z)', re.DOTALL)


def check_values(body: bytes | bytearray) -> None:
    """Raises HttpError (413) for a body of more values than reading takes some 50 ms for."""
    if _is_within(body.count(b","), body.count(b"[") + body.count(b"{")):
        return
    values = lists = 0
    for part in _outside_texts(body):
        values, lists = values + part.count(b","), lists + part.count(b"[") + part.count(b"{")
        if not _is_within(values, lists):
            said = f"the body has too many values: takes at most {MOST_VALUES}, {MOST_LISTS} of them lists or objects"
            raise HttpError(413, said, code="body_too_large")


def _is_within(values: int, lists: int) -> bool:
    return values < MOST_VALUES and lists < MOST_LISTS


def _outside_texts(body: bytes | bytearray) -> Iterator[bytes]:
    """The body without its texts, in parts."""
    start, in_text = 0, False
    while start < len(body):
        part = bytes(body[start : start + _PART])
        part = part[: len(part) - (len(part) - len(part.rstrip(b"\\"))) % 2] or part  # escapes stay whole
        start += len(part)
        if in_text:
            rest = _REST_OF_TEXT.match(part)
            in_text = rest is None or not rest[1]
            part = b"" if in_text or rest is None else part[rest.end() :]
        for last in _TEXT.finditer(part):
            in_text = not last[1]
        yield _TEXT.sub(b"", part)
