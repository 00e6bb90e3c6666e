"""Beam's schemas as Arrow's, so that Parquet has their types: of WriteTable's rows, and of the command's.

What a Beam schema does not say by its types (the digits of decimals, that a text is JSON) its fields' options say, see
typed/beam_schemas.py. A value that its type cannot hold exactly is refused, never rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from apache_beam.portability.api import schema_pb2
from apache_beam.typehints import schemas
from apache_beam.typehints.arrow_type_compatibility import ATOMIC_TYPE_TO_PYARROW

from millrace.model_manager.wire.errors import ConfigError

from ..typed.beam_schemas import JSON_OPTION, PRECISION_OPTION, SCALE_OPTION, beam_schema
from ..typed.shapes import Items, Maybe, Record
from .output_rows import COMMON_FIELDS
from .typed_rows import JSON_TEXT, typed_name

_INSTANT = pa.timestamp("us", tz="UTC")
_LOGICAL = {
    "beam:logical_type:date:v1": pa.date32(),
    "beam:logical_type:datetime:v1": _INSTANT,
    "beam:logical_type:micros_instant:v1": _INSTANT,
    "beam:logical_type:millis_instant:v1": _INSTANT,
}
_DECIMALS = ("beam:logical_type:decimal:v1", "beam:logical_type:fixed_decimal:v1")
_UNSAID = 38, 9
"""Digits of decimals, and how many are behind the point, where nothing says it: BigQuery's NUMERIC in 128 bits."""
_MOST_DIGITS = 76
_SPAN = pa.struct([pa.field(name, pa.int64(), nullable=False) for name in ("start", "end")])


def arrow_schema(schema: schema_pb2.Schema) -> pa.Schema:
    """Arrow's schema of rows. Raises ConfigError naming the field that Parquet has no type for."""
    return pa.schema([_field_of(field) for field in schema.fields])


def extracted_schema(record: Record) -> pa.Schema:
    """The schema of rows that output_rows.py makes from Extracted: the fields have the keys of answers."""
    fields = arrow_schema(beam_schema(_by_keys(record)))
    known = [
        pa.field("confidence", pa.float64()),
        pa.field("confidences", pa.map_(pa.string(), pa.float64())),
        pa.field("spans", pa.map_(pa.string(), _SPAN)),
    ]
    renamed = [field.with_name(typed_name(field.name)) for field in fields]
    return pa.schema([pa.field("id", pa.string(), nullable=False), *renamed, *known, *COMMON_FIELDS])


def exact(value: Decimal, field: pa.Field) -> Decimal:
    """The value. Raises ConfigError where the field's type cannot hold it as it is."""
    try:
        pa.scalar(value, field.type)
    except pa.ArrowInvalid:
        raise ConfigError(f"{field.name}: {value} does not go into {field.type} as it is: takes a wider type") from None
    return value


def _by_keys(shape: Any) -> Any:
    """The shape with its members' keys for names."""
    if isinstance(shape, Maybe):
        return Maybe(_by_keys(shape.shape))
    if isinstance(shape, Items):
        return replace(shape, item=_by_keys(shape.item))
    if isinstance(shape, Record):
        members = tuple(replace(each, name=each.key, shape=_by_keys(each.shape)) for each in shape.members)
        return replace(shape, members=members, make=None)
    return shape


def _field_of(field: schema_pb2.Field) -> pa.Field:
    return _field(field.name, field.type, dict(map(schemas.option_from_runner_api, field.options)))


def _field(name: str, kind: schema_pb2.FieldType, said: Mapping[str, Any]) -> pa.Field:
    """`said`: the options of the field, about its values or the values of its lists."""
    is_json = JSON_OPTION in said and kind.WhichOneof("type_info") == "atomic_type"
    return pa.field(name, _type(name, kind, said), nullable=kind.nullable, metadata=JSON_TEXT if is_json else None)


def _type(name: str, kind: schema_pb2.FieldType, said: Mapping[str, Any]) -> pa.DataType:
    which = kind.WhichOneof("type_info")
    if which == "atomic_type":
        return ATOMIC_TYPE_TO_PYARROW[kind.atomic_type]
    if which == "row_type":
        return pa.struct([_field_of(field) for field in kind.row_type.schema.fields])
    if which in ("array_type", "iterable_type"):
        return pa.list_(_field("element", getattr(kind, which).element_type, said))
    if which == "map_type":
        return pa.map_(_type(name, kind.map_type.key_type, said), _field("value", kind.map_type.value_type, said))
    urn = kind.logical_type.urn
    if urn in _DECIMALS:
        return _decimal(name, *_digits(kind.logical_type, said))
    if urn in _LOGICAL:
        return _LOGICAL[urn]
    raise ConfigError(f"{name}: its type in Beam is {urn or which}: Parquet has none for it")


def _digits(kind: schema_pb2.LogicalType, said: Mapping[str, Any]) -> tuple[int, int]:
    """How many digits in all, and how many behind the point: as the type says, else the field."""
    given = [each.atomic_value.int32 for each in kind.argument.row_value.values]
    if len(given) == 2 and given[0] > 0:
        return given[0], given[1]
    return int(said.get(PRECISION_OPTION, _UNSAID[0])), int(said.get(SCALE_OPTION, _UNSAID[1]))


def _decimal(name: str, precision: int, scale: int) -> pa.DataType:
    if not 0 < precision <= _MOST_DIGITS:
        raise ConfigError(f"{name}: decimals of {precision} digits: Parquet takes 1 to {_MOST_DIGITS}")
    return pa.decimal128(precision, scale) if precision <= _UNSAID[0] else pa.decimal256(precision, scale)
