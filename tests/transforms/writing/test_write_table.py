"""Rows with a schema become Parquet that holds what they hold."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.utils.timestamp import Timestamp

from millrace import ModelConfig, WriteTable
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.typed.beam_schemas import element_type
from millrace.transforms.typed.describe import record_of
from tests.transforms.running import pipeline
from tests.transforms.typed.invoices import Currency, Invoice, Line

MODEL = ModelConfig(model="any", max_num_seqs=4)
INVOICE = Invoice(
    number="77",
    issued=datetime.date(2026, 3, 1),
    sent=datetime.datetime(2026, 3, 1, 12, 30, tzinfo=datetime.UTC),
    currency=Currency.EUR,
    kind=None,
    paid=True,
    lines=[Line("lamp", 2, Decimal("4.50"))],
    weight=1.5,
    codes=["AB"],
    note=None,
)


def tables(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())])


def test_dates_decimals_rows_and_lists_are_columns_of_their_types(tmp_path: Path) -> None:
    with pipeline() as running:
        rows = running | beam.Create([INVOICE]).with_output_types(element_type(record_of(Invoice)))
        _ = rows | WriteTable(str(tmp_path / "invoices"))
    table = tables(tmp_path)
    assert table.schema.field("issued").type == pa.date32()
    assert table.schema.field("sent").type == pa.timestamp("us", tz="UTC")
    assert not table.schema.field("number").nullable
    (row,) = table.to_pylist()
    assert row == INVOICE._asdict() | {"lines": [INVOICE.lines[0]._asdict()], "currency": "EUR"}


class Reading(NamedTuple):
    at: Timestamp
    local: datetime.datetime
    price: Decimal
    parts: list[Decimal]


def write(row: Reading, prefix: Path, **settings: Any) -> None:
    with pipeline() as running:
        _ = running | beam.Create([row]).with_output_types(Reading) | WriteTable(str(prefix), **settings)


def test_rows_of_any_origin_are_written_and_times_are_in_utc(tmp_path: Path) -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    given = Reading(Timestamp(1.5), datetime.datetime(2026, 3, 1, 1, tzinfo=zone), Decimal("1e-9"), [Decimal(10**28)])
    write(given, tmp_path / "rows")
    (row,) = tables(tmp_path).to_pylist()
    assert row["at"] == datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, datetime.UTC)
    assert (row["local"], row["local"].tzinfo.utcoffset(None)) == (given.local, datetime.timedelta())
    assert (row["price"], row["parts"]) == (given.price, given.parts)


def test_a_decimal_that_would_be_rounded_is_refused_unless_the_schema_has_room(tmp_path: Path) -> None:
    given = Reading(Timestamp(0), datetime.datetime(2026, 3, 1), Decimal("1e-10"), [])
    with pytest.raises(Exception, match=r"price: 1E-10 does not go into decimal128\(38, 9\)"):
        write(given, tmp_path / "refused" / "rows")
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("price", pa.decimal128(38, 20))])
    write(given, tmp_path / "taken" / "rows", schema=schema)
    (row,) = tables(tmp_path / "taken").to_pylist()
    assert row == {"at": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), "price": Decimal("1e-10")}


def test_what_has_no_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes rows with a schema"), pipeline() as running:
        _ = running | beam.Create([1]) | WriteTable("x")
