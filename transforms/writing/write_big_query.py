"""WriteBigQuery: rows with a Beam schema → a table of BigQuery, which is made where there is none.

Beam's WriteToBigQuery takes such rows as they are by the Storage Write API alone, which needs Java where a job is
submitted. By load jobs and streaming inserts it takes dicts, and a table's schema: both are made here.
"""

from __future__ import annotations

import base64
import datetime
import enum
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.gcp.bigquery import WriteToBigQuery

from millrace.model_manager.wire.errors import ConfigError

from .arrow_values import arrow_members
from .write_table import table_schema, table_value

_TYPES: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pa.types.is_string, "STRING"),
    (pa.types.is_integer, "INTEGER"),
    (pa.types.is_floating, "FLOAT"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_timestamp, "TIMESTAMP"),
    (pa.types.is_binary, "BYTES"),
]
_DECIMALS = {"NUMERIC": (29, 9), "BIGNUMERIC": (38, 38)}
"""Most digits before the point, and behind it; BIGNUMERIC has a 39th before it for some."""


class WriteBigQuery(beam.PTransform):
    """Appends rows to a table, `project:dataset.table`; returns what Beam's WriteToBigQuery does.

    Decimals are NUMERIC, or BIGNUMERIC where they have more digits, times are TIMESTAMP, rows within rows RECORD, lists
    REPEATED, where BigQuery knows no null: one is an empty list. A mapping is a REPEATED RECORD of `key` and `value`.
    """

    def __init__(self, table: str, **settings: Any) -> None:
        """`settings`: Beam's own, such as method, create_disposition, write_disposition, custom_gcs_temp_location.

        `method`: FILE_LOADS or STREAMING_INSERTS, by default whichever is for a job or a stream; STORAGE_WRITE_API.
        """
        super().__init__()
        if "schema" in settings:
            raise ConfigError("schema: WriteBigQuery makes its own, of the rows' type")
        self._table = table
        self._settings = settings

    def expand(self, rows: Any) -> Any:
        schema = table_schema(rows.element_type)
        settings = {"schema": big_query_schema(schema), **self._settings}
        if self._settings.get("method") == WriteToBigQuery.Method.STORAGE_WRITE_API:
            return rows | "Write" >> WriteToBigQuery(self._table, **self._settings)
        return rows | "As JSON" >> beam.Map(_row, schema) | "Write" >> WriteToBigQuery(self._table, **settings)


def big_query_schema(schema: pa.Schema) -> dict[str, Any]:
    """BigQuery's schema of a table. Raises ConfigError naming the field that it has no type for."""
    return {"fields": [_field(field) for field in schema]}


def _field(field: pa.Field) -> dict[str, Any]:
    kind = field.type
    if pa.types.is_map(kind):
        pair = [pa.field("key", kind.key_type, nullable=False), kind.item_field.with_name("value")]
        return _repeated(field.name, pa.field(field.name, pa.struct(pair), nullable=False))
    if pa.types.is_list(kind):
        return _repeated(field.name, kind.value_field)
    mode = "NULLABLE" if field.nullable else "REQUIRED"
    if pa.types.is_struct(kind):
        return {"name": field.name, "type": "RECORD", "mode": mode, "fields": [_field(each) for each in kind]}
    return {"name": field.name, "type": _type(field), "mode": mode}


def _repeated(name: str, item: pa.Field) -> dict[str, Any]:
    found = _field(item.with_name(name))
    if found["mode"] != "REQUIRED":
        raise ConfigError(f"{name}: lists of lists, or with nulls in them: BigQuery has neither")
    return found | {"mode": "REPEATED"}


def _type(field: pa.Field) -> str:
    kind = field.type
    if pa.types.is_decimal(kind):
        before = kind.precision - kind.scale
        for name, (most_before, most_behind) in _DECIMALS.items():
            if before <= most_before and kind.scale <= most_behind:
                return name
        raise ConfigError(f"{field.name}: {kind}: BigQuery takes up to 38 digits before the point and behind it")
    return next(name for is_kind, name in _TYPES if is_kind(kind))


def _row(row: Any, schema: pa.Schema) -> dict[str, Any]:
    """A row as BigQuery takes it in JSON."""
    return arrow_members(row, schema, _json_value, entry=lambda key, value: {"key": key, "value": value})


def _json_value(value: Any, field: pa.Field) -> Any:
    if value is None and (pa.types.is_list(field.type) or pa.types.is_map(field.type)):
        return []
    return _text(table_value(value, field))


def _text(value: Any) -> Any:
    """What JSON has no type for as text: integers too, which many a reader of JSON takes for 53 bits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).isoformat()
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.value if isinstance(value, enum.Enum) else value
