"""Values of Python rows with an Arrow schema, visited one by one. Knows nesting; not what becomes of a value.

Rows that are read are Arrow's, and Python has no form for some of their values: reading/arrow_plain.py walks those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

LeafValue = Callable[[Any, pa.Field], Any]
"""What a value that holds no others becomes; it gets None of any type, too."""


def as_they_are(key: Any, value: Any) -> Any:
    """An entry of a map, as Arrow reads it."""
    return key, value


def arrow_members(
    row: Any, fields: pa.Schema | pa.StructType, leaf: LeafValue, entry: Callable[[Any, Any], Any] = as_they_are
) -> dict[str, Any]:
    """The fields of a row, or of a struct in it; what a dict lacks is left out. `entry` makes an entry of a map."""

    def value_of(value: Any, field: pa.Field) -> Any:
        kind = field.type
        if value is None:
            return leaf(None, field)
        if pa.types.is_struct(kind):
            return arrow_members(value, kind, leaf, entry)
        if pa.types.is_list(kind):
            return [value_of(each, kind.value_field) for each in value]
        if pa.types.is_map(kind):
            return [
                entry(value_of(key, kind.key_field), value_of(each, kind.item_field)) for key, each in value.items()
            ]
        return leaf(value, field)

    if isinstance(row, dict):
        return {field.name: value_of(row[field.name], field) for field in fields if field.name in row}
    return {field.name: value_of(getattr(row, field.name), field) for field in fields}
