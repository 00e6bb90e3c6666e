"""Rows of a user's own type, as output_rows.py writes them: the answer's fields beside ours, and JSON values as values
of Arrow's types.

    {"id", …the fields, by their keys…, "confidence", "confidences": {path: …}, "spans": {path: {"start", "end"}}, …}

A field with a name of ours gets an underscore: `id_`. Paths are made of the names in the row.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from ..elements.task_results import Extracted
from ..typed.key_paths import key_path
from ..typed.values import json_text
from .arrow_values import arrow_members

JSON_TEXT = {b"millrace": b"json"}
"""Metadata of a field that holds any JSON, as text."""
_OURS = frozenset(
    ("id", "confidence", "confidences", "spans", "finish_reason", "usage", "timings", "model", "revision")
) | {"prompt_hash", "columns"}
_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)


def typed_name(key: str) -> str:
    """A field's name in rows."""
    return f"{key}_" if key.rstrip("_") in _OURS else key


def extracted_fields(result: Extracted) -> dict[str, Any]:
    """What was found, and how sure the model was."""
    answer = msgspec.json.decode(result.answer, type=dict[str, msgspec.Raw])
    return {
        **{typed_name(key): value for key, value in answer.items()},
        "confidence": result.confidence,
        "confidences": {_path(path, result): each for path, each in result.confidences.items()},
        "spans": {_path(path, result): {"start": start, "end": end} for path, (start, end) in result.spans.items()},
    }


def _path(path: str, result: Extracted) -> str:
    """The path of a value, by the names that rows have."""
    return key_path(path, result.keys, typed_name)


def typed_fields(row: dict[str, Any]) -> dict[str, Any]:
    """The extracted fields of a written row, by the names that the user's type has."""
    return {_given_name(name): value for name, value in own_columns(row).items()}


def own_columns(row: dict[str, Any]) -> dict[str, Any]:
    """The extracted fields of a written row, by the names that the row and its paths have."""
    return {name: value for name, value in row.items() if name not in _OURS}


def _given_name(name: str) -> str:
    return name[:-1] if name.rstrip("_") in _OURS else name


def arrow_row(line: bytes, schema: pa.Schema) -> dict[str, Any]:
    """A line's values as `pa.Table.from_pylist` takes them."""
    found = _DECODER.decode(line)
    found["columns"] = json_text(found["columns"])
    return arrow_members(found, schema, _value)


def _value(found: Any, field: pa.Field) -> Any:
    if field.metadata == JSON_TEXT:
        return json_text(found)
    convert = next((made for is_kind, made in _CONVERSIONS if is_kind(field.type)), None)
    return convert(found) if convert and found is not None else found


_CONVERSIONS: list[tuple[Callable[[Any], bool], Callable[[Any], Any]]] = [
    (pa.types.is_floating, float),
    (pa.types.is_integer, int),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_date, datetime.date.fromisoformat),
    (pa.types.is_timestamp, datetime.datetime.fromisoformat),
]
