"""One Arrow schema of a type, whoever writes it; what it cannot hold exactly is refused."""

import dataclasses
import datetime
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import pydantic
import pytest
from apache_beam.portability.api import schema_pb2
from apache_beam.typehints import schemas

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.typed.beam_schemas import element_type
from millrace.transforms.typed.describe import record_of
from millrace.transforms.writing.arrow_schema import arrow_schema, exact, extracted_schema
from millrace.transforms.writing.typed_rows import JSON_TEXT
from tests.transforms.typed.invoices import SCHEMA, TYPES, Order


@dataclasses.dataclass
class Amounts:
    """Decimals of all sorts."""

    bare: Decimal
    few: Annotated[Decimal, pydantic.Field(max_digits=6, decimal_places=4)] | None
    listed: list[Annotated[Decimal, pydantic.Field(decimal_places=2)]]
    large: Annotated[Decimal, pydantic.Field(le=Decimal(10) ** 40)]


def rows_schema(given: Any) -> pa.Schema:
    """What WriteTable takes from the rows' own type."""
    return arrow_schema(schemas.typing_to_runner_api(element_type(record_of(given))).row_type.schema)


def nameless(kind: pa.DataType) -> Any:
    """A type without the names of its fields."""
    if pa.types.is_struct(kind):
        return [(nameless(field.type), field.nullable, field.metadata) for field in kind]
    if pa.types.is_list(kind):
        return "list", nameless(kind.value_type), kind.value_field.nullable, kind.value_field.metadata
    return kind


@pytest.mark.parametrize("given", TYPES, ids=lambda each: getattr(each, "__name__", "schema"))
def test_the_commands_columns_are_those_of_the_rows(given: Any) -> None:
    rows = rows_schema(given)
    command = [extracted_schema(record_of(given)).field(at) for at in range(1, len(rows) + 1)]
    if given not in (Order, SCHEMA):  # whose keys are others than their names
        assert [field.name for field in command] == rows.names
        assert all(ours.equals(theirs, check_metadata=True) for ours, theirs in zip(command, rows, strict=True))
    assert [nameless(field.type) for field in command] == [nameless(field.type) for field in rows]
    assert [(field.nullable, field.metadata) for field in command] == [
        (field.nullable, field.metadata) for field in rows
    ]


def test_keys_are_the_commands_names_at_every_depth() -> None:
    found = extracted_schema(record_of(SCHEMA))
    assert found.names[1:8] == ["note", "order-id", "day", "state", "size", "class", "tags"]
    assert found.field("class").metadata == JSON_TEXT
    assert extracted_schema(record_of(Order)).names[1] == "customer"
    assert rows_schema(Order).names[0] == "buyer"


def test_decimals_have_the_digits_that_the_type_says() -> None:
    kinds = {field.name: field.type for field in rows_schema(Amounts)}
    assert (kinds["bare"], kinds["few"]) == (pa.decimal128(27, 9), pa.decimal128(6, 4))
    assert (kinds["listed"].value_type, kinds["large"]) == (pa.decimal128(20, 2), pa.decimal128(27, 9))


def logical(urn: str, *arguments: int) -> schema_pb2.Schema:
    values = [schema_pb2.FieldValue(atomic_value=schema_pb2.AtomicTypeValue(int32=each)) for each in arguments]
    kind = schema_pb2.LogicalType(urn=f"beam:logical_type:{urn}:v1")
    if values:
        kind.argument.CopyFrom(schema_pb2.FieldValue(row_value=schema_pb2.Row(values=values)))
    return schema_pb2.Schema(
        fields=[schema_pb2.Field(name="given", type=schema_pb2.FieldType(logical_type=kind, nullable=True))]
    )


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (logical("decimal"), pa.decimal128(38, 9)),
        (logical("fixed_decimal"), pa.decimal128(38, 9)),
        (logical("fixed_decimal", -1, 0), pa.decimal128(38, 9)),
        (logical("fixed_decimal", 12, 3), pa.decimal128(12, 3)),
        (logical("fixed_decimal", 50, 20), pa.decimal256(50, 20)),
        (logical("date"), pa.date32()),
        (logical("datetime"), pa.timestamp("us", tz="UTC")),
        (logical("micros_instant"), pa.timestamp("us", tz="UTC")),
        (logical("millis_instant"), pa.timestamp("us", tz="UTC")),
    ],
)
def test_types_of_other_languages_are_known(schema: schema_pb2.Schema, kind: pa.DataType) -> None:
    assert arrow_schema(schema).field("given") == pa.field("given", kind)


@pytest.mark.parametrize("schema", [logical("python_callable"), logical("fixed_decimal", 77, 0)])
def test_what_parquet_has_no_type_for_is_refused_by_its_field(schema: schema_pb2.Schema) -> None:
    with pytest.raises(ConfigError, match=r"^given: "):
        arrow_schema(schema)


def test_a_decimal_is_kept_as_it_is_or_refused() -> None:
    field = pa.field("price", pa.decimal128(6, 2))
    for text in ("0", "1234.56", "-9999.99", "1.500", "1E+2", "-0.00"):
        found = pa.array([exact(Decimal(text), field)], field.type).to_pylist()
        assert found == [Decimal(text)]
    for text in ("1.505", "10000", "1E-3", "NaN", "Infinity"):
        with pytest.raises(ConfigError, match=r"^price: .* does not go into decimal128\(6, 2\) as it is"):
            exact(Decimal(text), field)


def test_days_and_times_of_all_years_that_answers_have_are_kept() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=-13, minutes=-59))
    times = [
        datetime.datetime(1000, 1, 1, 0, 0, 0, 1, datetime.UTC),
        datetime.datetime(8999, 12, 31, 23, 59, 59, 999999, zone),
    ]
    found = pa.array(times, pa.timestamp("us", tz="UTC")).to_pylist()
    assert found == times
