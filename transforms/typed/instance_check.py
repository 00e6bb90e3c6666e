"""Checks that a row's instance is what its columns hold: a class's own validators may give back anything."""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from millrace.model_manager.wire.errors import AnswerRejected

from .beam_schemas import DateTime, row_class
from .remade import remade
from .shapes import Items, Kind, Leaf, Maybe, Member, Record, Shape

_INTEGERS = range(-(2**63), 2**63)


def check_held(shape: Shape, value: Any, path: str = "") -> None:
    """Raises AnswerRejected, naming the field, for what Beam's coder or a table would fail on or change."""
    if isinstance(shape, Maybe):
        if value is not None:
            check_held(shape.shape, value, path)
    elif isinstance(shape, Items):
        _check_items(shape, value, path)
    elif isinstance(shape, Record):
        _check_record(shape, value, path)
    else:
        leaf = shape if isinstance(shape, Leaf) else Leaf("text", {})
        _check(_holds(leaf, value), value, f"no {leaf.kind} that its column holds", path)


def _check(holds: bool, value: Any, said: str, path: str) -> None:
    if not holds:
        raise AnswerRejected(f"{path}: the row has {repr(value)[:80]}, which is {said}")


def _check_items(items: Items, value: Any, path: str) -> None:
    _check(isinstance(value, list | tuple), value, "no list", path)
    for at, each in enumerate(value):
        check_held(items.item, each, f"{path}[{at}]")


def _check_record(record: Record, value: Any, path: str) -> None:
    _check(isinstance(value, row_class(record)), value, f"no {record.name}", path or record.name)
    for member in record.members:
        _check_member(member, getattr(value, member.name, None), f"{path}.{member.name}" if path else member.name)
    if record.make is not None:
        _check_remade(record, value, path or record.name)


def _check_member(member: Member, value: Any, path: str) -> None:
    if value is not None or member.required:
        check_held(member.shape, value, path)


def _check_remade(record: Record, value: Any, path: str) -> None:
    """Check the instance as Beam's coder remakes it: the class's own code may run again there."""
    try:
        remade(record, {member.name: getattr(value, member.name) for member in record.members})
    except Exception as error:  # a user's code raises any error
        raise AnswerRejected(f"{path} is not made of its fields again: {error!r:.200}") from None


def _holds(leaf: Leaf, value: Any) -> bool:
    is_choice = leaf.convert is None or _succeeds(leaf.convert, value)
    return is_choice and _HOLDS[leaf.kind](leaf, value)


def _succeeds(convert: Callable[[Any], Any], value: Any) -> bool:
    try:
        convert(value)
    except Exception:  # as above
        return False
    return True


def _is_text(_leaf: Leaf, value: Any) -> bool:
    return isinstance(value, str) and _succeeds(str.encode, value)


def _is_integer(_leaf: Leaf, value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) in _INTEGERS


def _is_number(_leaf: Leaf, value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and _succeeds(float, value)


def _is_decimal(leaf: Leaf, value: Any) -> bool:
    if not isinstance(value, Decimal) or not value.is_finite():
        return False
    return not value or (value.adjusted() < leaf.digits and not value % Decimal(1).scaleb(-leaf.places))


def _is_date(_leaf: Leaf, value: Any) -> bool:
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)


def _is_time(_leaf: Leaf, value: Any) -> bool:
    return isinstance(value, datetime.datetime) and _succeeds(DateTime().to_representation_type, value)


_HOLDS: dict[Kind, Callable[[Leaf, Any], bool]] = {
    "text": _is_text,
    "integer": _is_integer,
    "number": _is_number,
    "decimal": _is_decimal,
    "boolean": lambda _leaf, value: isinstance(value, bool),
    "date": _is_date,
    "datetime": _is_time,
    "json": _is_text,
}
