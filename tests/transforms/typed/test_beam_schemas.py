"""Rows as other languages of Beam's see them."""

import datetime
import uuid
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import RowCoder
from apache_beam.internal import pickler
from apache_beam.portability.api import schema_pb2
from apache_beam.typehints import schemas

from millrace.transforms.elements.task_results import Extracted
from millrace.transforms.typed import details
from millrace.transforms.typed.beam_schemas import DateTime, beam_schema, element_type
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.details import Details
from tests.transforms.typed.invoices import TYPES, Frozen, Invoice, Order


def types_of(schema: schema_pb2.Schema) -> dict[str, str]:
    """Fields' types as the portable schema has them."""
    found = {}
    for field in schema.fields:
        which = field.type.WhichOneof("type_info")
        name = field.type.logical_type.urn if which == "logical_type" else which
        name = schema_pb2.AtomicType.Name(field.type.atomic_type) if which == "atomic_type" else name
        found[field.name] = f"{name}{'?' if field.type.nullable else ''}"
    return found


def test_fields_have_types_that_other_languages_know() -> None:
    assert types_of(beam_schema(record_of(Invoice))) == {
        "number": "STRING",
        "issued": "beam:logical_type:date:v1",
        "sent": "beam:logical_type:datetime:v1?",
        "currency": "STRING",
        "kind": "STRING?",
        "paid": "BOOLEAN",
        "lines": "array_type",
        "weight": "DOUBLE",
        "codes": "array_type",
        "note": "STRING?",
    }
    line = beam_schema(record_of(Invoice)).fields[6].type.array_type.element_type.row_type.schema
    assert types_of(line) == {"item": "STRING", "quantity": "INT64", "price": "beam:logical_type:decimal:v1"}


@pytest.mark.parametrize("given", TYPES, ids=lambda each: getattr(each, "__name__", "schema"))
def test_the_coder_is_the_one_that_all_languages_have_and_beam_sees_the_schema(given: Any) -> None:
    record = record_of(given)
    coder = beam.coders.registry.get_coder(element_type(record))
    assert isinstance(coder, RowCoder)
    assert coder.to_runner_api_parameter(None)[0] == "beam:coder:row:v1"
    seen = schemas.schema_from_element_type(element_type(record))
    assert types_of(seen) == types_of(beam_schema(record))
    assert RowCoder.from_payload(seen.SerializeToString()).schema == seen


def test_the_same_type_has_the_same_schema_in_all_processes() -> None:
    assert beam_schema(record_of(Invoice)) == beam_schema(record_of(Invoice))
    assert beam_schema(record_of(Invoice)).id != beam_schema(record_of(Order)).id
    again = pickler.loads(pickler.dumps(element_type(record_of(Frozen))))
    assert again == element_type(record_of(Frozen)) == Frozen


@pytest.mark.parametrize("given", TYPES, ids=lambda each: getattr(each, "__name__", "schema"))
def test_ids_of_schemas_are_what_java_takes_for_them(given: Any) -> None:
    record = record_of(given)
    for kind in (element_type(record), Details(record).element_type):
        for schema in schemas_in(schemas.typing_to_runner_api(kind)):
            assert str(uuid.UUID(schema.id)) == schema.id


def schemas_in(kind: schema_pb2.FieldType) -> Iterator[schema_pb2.Schema]:
    """The schemas of a row and of its inner rows."""
    which = kind.WhichOneof("type_info")
    if which == "array_type":
        yield from schemas_in(kind.array_type.element_type)
    if which == "map_type":
        yield from schemas_in(kind.map_type.value_type)
    if which == "row_type":
        yield kind.row_type.schema
        for field in kind.row_type.schema.fields:
            yield from schemas_in(field.type)


def test_a_time_is_what_java_has_for_it() -> None:
    kind = beam_schema(record_of(Invoice)).fields[2].type.logical_type.representation
    assert types_of(kind.row_type.schema) == {"Date": "INT64", "Time": "INT64"}


def test_times_are_kept_to_the_microsecond_in_utc() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    known = DateTime()
    for when in (
        datetime.datetime(2026, 3, 1, 1, 30, 5, 123456, zone),
        datetime.datetime(1000, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(8999, 12, 31, 23, 59, 59, 999999, datetime.UTC),
    ):
        found = known.to_language_type(known.to_representation_type(when))
        assert (found, found.tzinfo) == (when, datetime.UTC)
    stored = known.to_representation_type(datetime.datetime(1970, 1, 2, 0, 0, 1, tzinfo=datetime.UTC))
    assert (int(stored.Date), int(stored.Time)) == (1, 10**9)


def test_the_class_of_details_is_made_once_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Extracted(id="a", answer="{}", confidence=0.0, model="m")
    first = Details(record_of(Order)).row(None, found)
    monkeypatch.setattr(details, "beam_schema", None)
    assert type(Details(record_of(Order)).row(None, found)) is type(first)
