"""Instances of a user's class again, of the values that rows have of them: no constructor and no validator runs.

What an instance has besides (fields that no constructor takes, private attributes) has its default, or what the
class's `__post_init__` or `model_post_init` makes of the values; whatever that makes of the values themselves is put
back. pydantic is not needed: its classes are known by their attributes.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from .shapes import Items, Leaf, Maybe, Record, Shape

_MISSING = object()


def remade(record: Record, values: Mapping[str, Any]) -> Any:
    """An instance of the record's class, from values by the names of its members; enums are given by value."""
    made: Any = record.make
    if not _keeps_plain_values(made):
        values = {each.name: _chosen(each.shape, values[each.name]) for each in record.members}
    if issubclass(made, tuple):
        return tuple.__new__(made, values.values())
    return _dataclass(made, values) if dataclasses.is_dataclass(made) else _model(made, values)


def _keeps_plain_values(made: type) -> bool:
    """Whether it is a pydantic class that has the value of an enum in its place."""
    config = getattr(made, "model_config", getattr(made, "__pydantic_config__", {}))
    return isinstance(config, dict) and bool(config.get("use_enum_values"))


def _chosen(shape: Shape, value: Any) -> Any:
    if value is None or isinstance(shape, Record):
        return value
    if isinstance(shape, Maybe):
        return _chosen(shape.shape, value)
    if isinstance(shape, Items):
        return [_chosen(shape.item, each) for each in value]
    return shape.convert(value) if isinstance(shape, Leaf) and shape.convert else value


def _dataclass(made: Any, values: Mapping[str, Any]) -> Any:
    row = object.__new__(made)
    if others := [each for each in dataclasses.fields(made) if not _is_given(made, each)]:
        _put(row, {each.name: default for each in others if (default := _default(made, each)) is not _MISSING})
        if hook := getattr(row, "__post_init__", None):
            _put(row, copy.deepcopy(values))
            hook(*_init_defaults(made))
    _put(row, values)
    return row


def _put(row: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        object.__setattr__(row, name, value)  # of frozen classes too


def _is_given(made: Any, given: dataclasses.Field[Any]) -> bool:
    """Whether the constructor takes the field."""
    info = _model_fields(made).get(given.name)
    return given.init if info is None else info.init is not False


def _default(made: Any, given: dataclasses.Field[Any]) -> Any:
    if info := _model_fields(made).get(given.name):
        return _MISSING if info.is_required() else info.get_default(call_default_factory=True)
    if given.default_factory is not dataclasses.MISSING:
        return given.default_factory()
    return _MISSING if given.default is dataclasses.MISSING else given.default


def _init_defaults(made: Any) -> list[Any]:
    """Defaults of the init-only fields, which a dataclass hands to `__post_init__` and does not keep."""
    kinds = made.__dataclass_fields__.values()
    return [each.default for each in kinds if each._field_type is dataclasses._FIELD_INITVAR]  # type: ignore[attr-defined]


def _model(made: Any, values: Mapping[str, Any]) -> Any:
    row = object.__new__(made)
    unset = {name: info for name, info in _model_fields(made).items() if name not in values}
    defaults = {name: info.get_default(call_default_factory=True) for name, info in unset.items()}
    _put(row, {"__dict__": {**values, **defaults}, "__pydantic_fields_set__": set(values)})
    if not made.__pydantic_root_model__:
        extra: dict[str, Any] | None = {} if made.model_config.get("extra") == "allow" else None
        _put(row, {"__pydantic_extra__": extra, "__pydantic_private__": None})
    if made.__private_attributes__:
        row.__dict__.update(copy.deepcopy(dict(values)))
        row.model_post_init(None)
        row.__dict__.update(values)
    return row


def _model_fields(made: Any) -> dict[str, Any]:
    return getattr(made, "__pydantic_fields__", {})
