"""JSON values → the user's own: a record of them is an instance of its class."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from millrace.model_manager.wire.errors import AnswerRejected

from ..elements.prompt_rows import MAX_DEPTH, too_deep
from .beam_schemas import row_class
from .shapes import Items, Kind, Leaf, Maybe, Piece, Record, Shape

_SHOWN = 80
"""Characters of a value in a message."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def decoded(text: str) -> Any:
    """JSON with its decimals as they are written. Raises AnswerRejected for half a character, which no file has, and
    for what is nested too deep to be encoded.
    """
    found = json.loads(text, parse_float=Decimal)
    if too_deep(found):
        raise AnswerRejected(f"the answer is nested deeper than {MAX_DEPTH} levels")
    if _SURROGATE.search(text):
        try:
            json.dumps(found, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise AnswerRejected("the answer has half of a surrogate pair, which is no character") from None
    return found


def value_of(shape: Shape, found: Any, path: str = "") -> Any:
    """A row's value; `path` is where it stands in the row. Raises AnswerRejected for what its class does not take."""
    if isinstance(shape, Maybe):
        return None if found is None else value_of(shape.shape, found, path)
    if isinstance(shape, Items):
        return [value_of(shape.item, each, f"{path}[{at}]") for at, each in enumerate(found)]
    if isinstance(shape, Record):
        return _made(shape, found, path)
    return found if isinstance(shape, Piece) else _leaf(shape, found, path)


def _made(record: Record, found: dict[str, Any], path: str) -> Any:
    values = {
        record.taken_as(member): value_of(member.shape, found[member.key], f"{path}.{member.name}".lstrip("."))
        if member.key in found
        else None
        for member in record.members
    }
    try:
        return row_class(record)(**values)
    except Exception as error:  # a class's own checks raise what they like
        raise AnswerRejected(f"{_at(path)}{record.name} does not take the answer: {_reason(error)}") from None


def _at(path: str) -> str:
    return f"{path}: " if path else ""


def _reason(error: Exception) -> str:
    """One line; of pydantic's errors what is wrong with each field, without the values and the links."""
    said = str(error)
    with contextlib.suppress(Exception):  # of another class, whatever its `errors` are
        found = [(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()]  # type: ignore[attr-defined]
        said = "; ".join(f"{where}: {what}" if where else what for where, what in found)
    return " ".join(said.split())[:300]


def _leaf(leaf: Leaf, found: Any, path: str) -> Any:
    try:
        return _READ[leaf.kind](found) if leaf.convert is None else leaf.convert(found)
    except Exception:  # as above
        raise AnswerRejected(f"{_at(path)}the answer has {repr(found)[:_SHOWN]}, which is no {leaf.kind}") from None


def _finite(found: Any) -> float:
    value = float(found)
    if not math.isfinite(value):
        raise ValueError(found)
    return value


def _as_it_is(found: Any) -> Any:
    return found


def _finite_text(found: Decimal) -> str:
    _finite(found)
    return str(found)


def json_text(found: Any, of_number: Callable[[Decimal], str] = str) -> str:
    """JSON, with the digits that its decimals have."""
    if isinstance(found, dict):
        pairs = (f"{json_text(key)}: {json_text(value, of_number)}" for key, value in found.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(found, list):
        return "[" + ", ".join(json_text(each, of_number) for each in found) + "]"
    return of_number(found) if isinstance(found, Decimal) else json.dumps(found, ensure_ascii=False)


_READ: dict[Kind, Callable[[Any], Any]] = {
    "text": _as_it_is,
    "integer": int,
    "number": _finite,
    "decimal": Decimal,
    "boolean": _as_it_is,
    "date": datetime.date.fromisoformat,
    "datetime": lambda found: datetime.datetime.fromisoformat(found).astimezone(datetime.UTC),
    "json": lambda found: json_text(found, _finite_text),
}
