"""A row that a user gives as an example → the answer that the model would have written."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from model_manager.wire.conversion import nearest
from model_manager.wire.errors import ConfigError
from transforms.typed.shapes import Items, Leaf, Maybe, Record, Shape


def answer_of(record: Record, value: Any) -> str:
    """JSON as the grammar writes it, questions in the keys. Raises ConfigError for what is no row of the record."""
    return _written(record, value, record.name)


def check_fields(shape: Shape, value: Any, path: str) -> None:
    """Raises ConfigError for what a mapping has and the record does not, which `answer_of` leaves out."""
    if isinstance(shape, Maybe):
        check_fields(shape.shape, value, path)
    elif isinstance(shape, Items) and isinstance(value, list | tuple):
        for at, each in enumerate(value):
            check_fields(shape.item, each, f"{path}[{at}]")
    elif isinstance(shape, Record) and isinstance(value, Mapping):
        _check_names(shape, value, path)
        for member in shape.members:
            check_fields(member.shape, value.get(member.key, value.get(member.name)), f"{path}.{member.name}")


def _check_names(record: Record, value: Mapping[str, Any], path: str) -> None:
    names = [name for member in record.members for name in (member.key, member.name)]
    if unknown := [name for name in value if name not in names]:
        near = nearest(str(unknown[0]), names)
        hint = f": did you mean {near}?" if near else ""
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
    return value if isinstance(shape, Leaf) and shape.kind == "json" and isinstance(value, str) else _plain(value, path)


def _members(record: Record, value: Any, path: str) -> list[str]:
    written = []
    for member in record.in_order:
        if isinstance(value, Mapping):
            found = value.get(member.key, value.get(member.name))
        else:
            found = getattr(value, member.name, None)
        if found is None and not member.required:
            continue
        if found is None and not isinstance(member.shape, Maybe):
            raise ConfigError(f"example: {path} has no {member.key}: {value!r}")
        inner = _written(member.shape, found, f"{path}.{member.name}")
        written.append(f"{json.dumps(member.asked_key, ensure_ascii=False)}: {inner}")
    return written


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
