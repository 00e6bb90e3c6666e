"""Frozen settings → command-line flags, with the names, types, defaults and docstrings of the settings."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import inspect as types

from millrace.model_manager.wire.field_docs import field_docs

_PLAIN = {types.IntType: int, types.FloatType: float, types.StrType: str}


def add_settings(
    group: Any,
    settings: type[msgspec.Struct],
    leave_out: Collection[str] = (),
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """One flag for each field; returns the names. Flags that are not given are None, so the settings' defaults hold, or
    `defaults`, which help tells in their place.
    """
    described = types.type_info(settings)
    assert isinstance(described, types.StructType)
    docs = field_docs(settings)
    fields = [field for field in described.fields if field.name not in leave_out]
    for field in fields:
        default = f" Default: {defaults[field.name]}." if field.name in defaults else _default(field)
        help_text = f"{docs[field.name]}{default}".replace("%", "%%")
        group.add_argument(f"--{field.name}", default=None, help=help_text, **_reader(field))
    return [field.name for field in fields]


def given(arguments: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """The named flags that were given, with their values."""
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}


def arguments_of(values: Mapping[str, Any]) -> list[str]:
    """Flags again, of values as argparse gives them: a command line that says the same."""
    return [text for name, value in values.items() for text in _argument(name, value)]


def _argument(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{name}"]
    if isinstance(value, list | tuple):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}={msgspec.json.encode(value).decode() if isinstance(value, dict) else value}"]


def _reader(field: types.Field) -> dict[str, Any]:
    kind = _without_none(field.type)
    if isinstance(kind, types.BoolType):
        return {"action": argparse.BooleanOptionalAction}
    if isinstance(kind, types.LiteralType):
        return {"choices": list(kind.values)}
    if isinstance(kind, types.DictType | types.StructType):
        return {"type": json_object, "metavar": "JSON"}
    if isinstance(kind, types.VarTupleType):
        return {"nargs": "+", "type": _PLAIN[type(kind.item_type)], "metavar": field.name.upper()}
    return {"type": _PLAIN[type(kind)], "metavar": "N" if _PLAIN[type(kind)] is not str else field.name.upper()}


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object; argparse calls this as a flag's type."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        raise argparse.ArgumentTypeError(f"takes a JSON object, got {text!r}") from None


def _without_none(kind: types.Type) -> types.Type:
    if isinstance(kind, types.UnionType):
        (kind,) = (member for member in kind.types if not isinstance(member, types.NoneType))
    return kind


def _default(field: types.Field) -> str:
    return (
        ""
        if field.default in (None, "", (), msgspec.NODEFAULT) or field.default_factory is dict
        else f" Default: {field.default}."
    )
