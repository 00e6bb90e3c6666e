"""Rows as pyarrow reads them back."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """A row's value as dicts, lists (of pairs, where it is a mapping) and bare values."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if fields := getattr(type(value), "model_fields", None):
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return [(key, plain(each)) for key, each in value.items()]
    return [plain(each) for each in value] if isinstance(value, list) else value
