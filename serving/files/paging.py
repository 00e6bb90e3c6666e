"""Pages of a list, as OpenAI's clients turn them: `limit` entries behind the one that `after` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..http.http_errors import HttpError


class Shown(Protocol):
    """What is listed."""

    @property
    def id(self) -> str:
        """Its id."""

    def shown(self) -> dict[str, Any]:
        """As clients read it."""


_Listed = TypeVar("_Listed", bound=Shown)


def page(listed: Sequence[_Listed], query: Mapping[str, str], *, default: int, most: int) -> dict[str, Any]:
    """A page of a list whose latest is first; raises HttpError (400) for a bad limit, order or after."""
    limit = _limit(query.get("limit"), default, most)
    found = _ordered(listed, query.get("order", "desc"))
    begin = _begin(found, query.get("after"))
    part = found[begin : begin + limit]
    return {
        "object": "list",
        "data": [each.shown() for each in part],
        "first_id": part[0].id if part else None,
        "last_id": part[-1].id if part else None,
        "has_more": begin + limit < len(found),
    }


def _limit(given: str | None, default: int, most: int) -> int:
    limit = default if given is None else int(given) if given.isdecimal() and len(given) < 9 else 0
    _check("limit", given, 1 <= limit <= most, f"1 to {most}")
    return limit


def _ordered(listed: Sequence[_Listed], order: str) -> Sequence[_Listed]:
    _check("order", order, order in ("asc", "desc"), "asc or desc")
    return listed if order == "desc" else [*reversed(listed)]


def _begin(found: Sequence[_Listed], after: str | None) -> int:
    if after is None:
        return 0
    at = next((index for index, each in enumerate(found) if each.id == after), None)
    if at is None:
        raise HttpError(400, f"after={after!r}: is no id in this list", param="after", code="invalid_value")
    return at + 1


def _check(name: str, given: object, holds: bool, takes: str) -> None:
    if not holds:
        raise HttpError(400, f"{name}={given!r}: takes {takes}", param=name, code="invalid_value")
