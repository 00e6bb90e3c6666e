"""A row that a user gives as an example → the answer that the model would have written."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from millrace.model_manager.wire.conversion import did_you_mean, nearest
from millrace.model_manager.wire.errors import ConfigError

from .leaves import FLOAT_PLACES
from .shapes import Items, Leaf, Maybe, Member, Record, Shape

_ABSENT = object()
"""What a mapping has not, which is not null."""


def example_answer(record: Record, value: Any) -> str:
    """JSON as the grammar writes it, questions in the keys. Raises ConfigError for what is no row of the record."""
    return _written(record, value, record.name)


def check_fields(shape: Shape, value: Any, path: str) -> None:
    """Raises ConfigError for what a mapping has and the record does not, which `example_answer` leaves out."""
    if isinstance(shape, Maybe):
        check_fields(shape.shape, value, path)
    elif isinstance(shape, Items) and isinstance(value, list | tuple):
        for at, each in enumerate(value):
            check_fields(shape.item, each, f"{path}[{at}]")
    elif isinstance(shape, Record) and isinstance(value, Mapping):
        _check_names(shape, value, path)
        for member in shape.members:
            check_fields(member.shape, _given(shape, member, value), f"{path}.{member.name}")


def _given(record: Record, member: Member, value: Any) -> Any:
    """What an instance or a mapping has for a member, or _ABSENT; a mapping by its key, or by its name unless that is
    another's.
    """
    if not isinstance(value, Mapping):
        return getattr(value, member.name, _ABSENT)
    is_anothers = any(each.key == member.name for each in record.members)
    return value.get(member.key, _ABSENT if is_anothers else value.get(member.name, _ABSENT))


def _check_names(record: Record, value: Mapping[str, Any], path: str) -> None:
    names = [name for member in record.members for name in (member.key, member.name)]
    if unknown := [name for name in value if name not in names]:
        hint = did_you_mean(nearest(str(unknown[0]), names))
        raise ConfigError(f"example: {path} has no field {unknown[0]!r}{hint}")


def _written(shape: Shape, value: Any, path: str) -> str:
    if isinstance(shape, Maybe):
        return "null" if value is None else _written(shape.shape, value, path)
    if isinstance(shape, Items):
        if isinstance(value, str | Mapping) or not hasattr(value, "__iter__"):
            raise ConfigError(f"example: {path} is {value!r}: takes a list")
        return "[" + ", ".join(_written(shape.item, each, f"{path}[{at}]") for at, each in enumerate(value)) + "]"
    if isinstance(shape, Record):
        return "{" + ", ".join(_members(shape, value, path)) + "}"
    if isinstance(shape, Leaf):
        if shape.kind == "json":
            return _any_json(value, path)
        if shape.kind == "number" and isinstance(value, float):
            value = round(value, FLOAT_PLACES)
        return _plain(value, path).replace("\x7f", "\\u007f")  # as strings of JSON have it in a grammar
    return _plain(value, path)


def _members(record: Record, value: Any, path: str) -> list[str]:
    written = []
    for member in record.in_order:
        found = _given(record, member, value)
        if _is_missing(member, found, value):
            if not member.required:
                continue
            if not isinstance(member.shape, Maybe):
                raise ConfigError(f"example: {path} has no {member.key}: {value!r}")
            found = None
        inner = _written(member.shape, found, f"{path}.{member.name}")
        written.append(f"{json.dumps(member.key_with_question, ensure_ascii=False)}: {inner}")
    return written


def _is_missing(member: Member, found: Any, value: Any) -> bool:
    """Whether None is no null: where no null is taken, or in a row, which has it for what may be missing too."""
    if found is not None:
        return found is _ABSENT
    return not _takes_null(member.shape) or not (member.required or isinstance(value, Mapping))


def _takes_null(shape: Shape) -> bool:
    if isinstance(shape, Leaf) and shape.kind == "json":
        return _may_be_null(shape.schema)
    return isinstance(shape, Maybe)


def _may_be_null(schema: Any) -> bool:
    """Whether nothing in a schema says that null is not of it; what a `$ref` leads to is not looked at."""
    if not isinstance(schema, Mapping):
        return schema is not False
    options = [schema[name] for name in ("anyOf", "oneOf") if name in schema]
    return (
        ("type" not in schema or "null" in schema["type"])
        and ("enum" not in schema or None in schema["enum"])
        and ("const" not in schema or schema["const"] is None)
        and all(any(map(_may_be_null, each)) for each in options)
        and all(map(_may_be_null, schema.get("allOf", ())))
    )


def _any_json(value: Any, path: str) -> str:
    """Any JSON of an example, as text: given as rows have it, which is text, or as a value."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError):
        raise ConfigError(f"example: {path} is {value!r}: takes JSON, a string of it in quotation marks") from None


def _plain(value: Any, path: str) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        return json.dumps(value.isoformat().replace("+00:00", "Z"))
    if isinstance(value, datetime.date):
        return json.dumps(value.isoformat())
    try:
        return json.dumps(value.value if isinstance(value, enum.Enum) else value, ensure_ascii=False)
    except (TypeError, ValueError):
        raise ConfigError(f"example: {path} is {value!r}: takes JSON") from None
