"""Ids of requests: the caller's own, and ids for the further requests that one prompt may become.

A derived id holds a character that no caller's id may have, so the two are never equal.
"""

from __future__ import annotations

from ..wire.errors import InvalidRequest
from ..wire.messages import LONGEST_NAME

_SEPARATOR = "\x1f"  # ASCII: unit separator
_LONGEST = LONGEST_NAME - 32
"""Characters; derived ids are a little longer."""


def callers_id(request_id: str) -> str:
    """The id, if a caller may give it; raises InvalidRequest."""
    if _SEPARATOR in request_id:
        raise InvalidRequest(f"request_id={request_id!r}: takes text without U+001F, which derived ids hold")
    if len(request_id) > _LONGEST:
        raise InvalidRequest(f"request_id of {len(request_id)} characters: takes at most {_LONGEST}")
    return request_id


def sibling_id(family: str, index: int) -> str:
    """The id of request `index` of the requests that share a prompt. The first has the caller's own id, which is also
    the name of the group (`Request.family`).
    """
    return f"{family}{_SEPARATOR}{index}" if index else family
