"""Records as Beam's schemas: their rows have Beam's RowCoder, so Beam SQL, BigQuery and Java read them as they are.

Dates and decimals are Beam's own logical types. A datetime is the logical type of Beam's Java SDK, in UTC. A schema's
id is a hash of its content, so that it is the same in all processes.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, Optional

import numpy as np
from apache_beam.coders import RowCoder
from apache_beam.coders import registry as coders
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from apache_beam.portability.api import schema_pb2
from apache_beam.typehints import schemas
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schema_registry import SCHEMA_REGISTRY
from apache_beam.typehints.schemas import LogicalType, NoArgumentLogicalType

from .remade import remade
from .shapes import Items, Kind, Leaf, Maybe, Member, Piece, Record, Shape, children

PRECISION_OPTION, SCALE_OPTION = "millrace:precision", "millrace:scale"
"""Options of a field: digits of its decimals, or of the decimals in its lists, and digits after the point."""
JSON_OPTION = "millrace:json"
"""Option of a field whose texts are JSON."""
_EPOCH = datetime.date(1970, 1, 1)
_TYPES: dict[Kind, type] = {
    "text": str,
    "integer": int,
    "number": float,
    "decimal": Decimal,
    "boolean": bool,
    "date": datetime.date,
    "datetime": datetime.datetime,
    "json": str,
}


_DateAndTime = NamedTuple("_DateAndTime", [("Date", np.int64), ("Time", np.int64)])  # noqa: UP014 (types, no strings)
"""As Java's SqlTypes.DATETIME has it: days since 1970, and nanoseconds of the day."""


@LogicalType.register_logical_type
class DateTime(NoArgumentLogicalType[datetime.datetime, _DateAndTime]):
    """datetime.datetime, to the microsecond; rows have it in UTC."""

    @classmethod
    def urn(cls) -> str:
        return "beam:logical_type:datetime:v1"

    @classmethod
    def representation_type(cls) -> type:
        return _DateAndTime

    @classmethod
    def language_type(cls) -> type:
        return datetime.datetime

    def to_representation_type(self, value: datetime.datetime) -> _DateAndTime:
        given = value if value.tzinfo is None else value.astimezone(datetime.UTC)
        since_midnight = datetime.timedelta(
            hours=given.hour, minutes=given.minute, seconds=given.second, microseconds=given.microsecond
        )
        micros = since_midnight // datetime.timedelta(microseconds=1)
        return _DateAndTime(np.int64((given.date() - _EPOCH).days), np.int64(micros * 1000))

    def to_language_type(self, value: Any) -> datetime.datetime:
        day = _EPOCH + datetime.timedelta(days=int(value.Date))
        midnight = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
        return midnight + datetime.timedelta(microseconds=int(value.Time) // 1000)


def beam_schema(record: Record) -> schema_pb2.Schema:
    """A record's schema in Beam. Its id is a hash of the schema and of its rows' class."""
    made = schema_pb2.Schema(fields=map(_field, record.members))
    of_class = f"{record.make.__module__}.{record.make.__qualname__}" if record.make else ""
    made.id = schema_id(made.SerializeToString(deterministic=True) + of_class.encode())
    return made


def schema_id(content: bytes) -> str:
    """The id of a schema, the same in all processes, which Java wants to be a UUID."""
    return str(uuid.UUID(bytes=hashlib.sha256(content).digest()[:16]))


def _field(member: Member) -> schema_pb2.Field:
    found = _type_of(member.shape)
    found.nullable = found.nullable or not member.required
    options = map(schemas.option_to_runner_api, _options(member.shape))
    return schema_pb2.Field(name=member.name, type=found, options=options)


def _options(shape: Shape) -> list[tuple[str, Any]]:
    """What Beam's types do not say of a field's values."""
    if isinstance(shape, Maybe):
        return _options(shape.shape)
    if isinstance(shape, Items):
        return _options(shape.item)
    if not isinstance(shape, Leaf) or shape.kind not in ("decimal", "json"):
        return []
    digits = [(PRECISION_OPTION, shape.digits + shape.places), (SCALE_OPTION, shape.places)]
    return [(JSON_OPTION, True)] if shape.kind == "json" else digits


def _type_of(shape: Shape) -> schema_pb2.FieldType:
    if isinstance(shape, Maybe):
        found = _type_of(shape.shape)
        found.nullable = True
        return found
    if isinstance(shape, Items):
        return schema_pb2.FieldType(array_type=schema_pb2.ArrayType(element_type=_type_of(shape.item)))
    if isinstance(shape, Record):
        return schema_pb2.FieldType(row_type=schema_pb2.RowType(schema=beam_schema(shape)))
    return schemas.typing_to_runner_api(str if isinstance(shape, Piece) else _TYPES[shape.kind])


@lru_cache(maxsize=256)
def row_class(record: Record) -> Any:
    """What makes a row of values by name: the user's class, else a NamedTuple; known to Beam from now on."""
    for inner in _records_in(record):
        row_class(inner)
    schema = beam_schema(record)
    if record.make is None:
        return schemas.named_tuple_from_schema(schema)
    known = SCHEMA_REGISTRY.get_typing_by_id(schema.id)
    if getattr(known, "made", None) is not record.make:
        _register(record, record.make, schema)
    return record.make


def _records_in(shape: Shape) -> Iterator[Record]:
    """The outermost records in a shape."""
    for inner in children(shape):
        yield from [inner] if isinstance(inner, Record) else _records_in(inner)


def _register(record: Record, make: Any, schema: schema_pb2.Schema) -> None:
    make._beam_schema_id = schema.id  # by which Beam finds a type's schema
    made = _made_by_beam(record, schema.id)
    SCHEMA_REGISTRY.add(made, schema)
    coders.register_coder(made, RowCoder)
    if _known_to_beam(make):
        coders.register_coder(make, RowCoder)


def _made_by_beam(record: Record, schema_id: str) -> type:
    """What Beam's coder calls with a row's values in order. Beam takes it for a NamedTuple of the fields; its instances
    are the class's own.
    """
    names = tuple(member.name for member in record.members)

    def make(_made: type, *values: Any) -> Any:
        return remade(record, dict(zip(names, values, strict=True)))

    hints = {member.name: _hint_of(member.shape) for member in record.members}
    known = {"_fields": names, "__annotations__": hints, "_beam_schema_id": schema_id, "made": record.make}
    return type(record.name, (tuple,), {"__new__": make, **known})


def _known_to_beam(make: type) -> bool:
    """Whether Beam takes instances for rows."""
    if not dataclasses.is_dataclass(make):
        return issubclass(make, tuple)
    frozen = make.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return not frozen and not any(field.kw_only for field in dataclasses.fields(make))


def known_to_workers(options: PipelineOptions) -> None:
    """Make each worker import this module when it starts. A worker may get rows first, and Beam knows the time types
    only from this module.
    """
    setup = options.view_as(SetupOptions)
    if __name__ not in (plugins := setup.beam_plugins or []):
        setup.beam_plugins = [*plugins, __name__]


def element_type(record: Record) -> Any:
    """The type of a collection of the record's rows."""
    made = row_class(record)
    return made if record.make is None or _known_to_beam(made) else RowOfClass(record)


def _hint_of(shape: Shape) -> Any:
    if isinstance(shape, Maybe):
        return Optional[_hint_of(shape.shape)]  # noqa: UP045 (a RowTypeConstraint knows no |)
    if isinstance(shape, Items):
        return Sequence[_hint_of(shape.item)]  # type: ignore[misc]
    if isinstance(shape, Record):
        return element_type(shape)
    return str if isinstance(shape, Piece) else _TYPES[shape.kind]


class RowOfClass(RowTypeConstraint):
    """The element type of classes that Beam does not take for rows: pydantic's models, frozen dataclasses.

    It equals the class, so that what is declared to take the class takes these rows.
    """

    def __init__(self, record: Record) -> None:
        fields = [(member.name, _hint_of(member.shape)) for member in record.members]
        super().__init__(fields, record.make)
        self.record = record

    def __eq__(self, other: object) -> bool:
        return other is self.record.make or (isinstance(other, RowOfClass) and other.record.make is self.record.make)

    def __hash__(self) -> int:
        return hash(self.record.make)

    def __reduce__(self) -> Any:
        return RowOfClass, (self.record,)


class RowOfClassCoder(RowCoder):
    """Beam's RowCoder, which gives instances of the class back."""

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: Any) -> RowCoder:  # noqa: ARG003
        row_class(typehint.record)
        return RowCoder(beam_schema(typehint.record))


coders.register_coder(RowOfClass, RowOfClassCoder)
