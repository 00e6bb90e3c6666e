"""JSON from people's texts (files, flags, columns of tables), read strictly: nothing that a text says is lost. And one
way to write a value down: equal values, equal bytes, in any process.

Knows no meaning of what it reads and writes.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from .errors import InvalidRequest

_BOM = "\ufeff"
_canonical_encoder = msgspec.json.Encoder(order="deterministic")


def canonical(value: Any) -> bytes:
    """JSON with sorted keys; keys that are numbers (token ids) become strings, which is how JSON has them anyway."""
    return _canonical_encoder.encode(msgspec.to_builtins(value, str_keys=True))


def json_value(text: str) -> Any:
    """The value; raises ValueError, one sentence with the line and the column, for a text that is no JSON, that has a
    key twice in an object (one of both would be lost), or a number that is none.
    """
    try:
        return json.loads(text.removeprefix(_BOM), object_pairs_hook=_unique, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        what = "it is empty" if not text.strip(f"{_BOM} \t\r\n") else error.msg
        raise ValueError(f"{what} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def from_text(where: str, text: str) -> Any:
    """The value of a text that a row has in the place of one; raises InvalidRequest, which says where it is."""
    try:
        return json_value(text)
    except ValueError as error:
        raise InvalidRequest(f"{where}: takes JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} is twice in an object")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")
