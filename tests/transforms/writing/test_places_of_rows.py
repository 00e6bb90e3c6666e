"""Rows of every form of a type are the same wherever they go: behind Beam's coder, in Parquet, in BigQuery."""

from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import pytest

from millrace import Extract, ModelConfig, WriteTable
from tests.transforms.constrained_client import ConstrainedClient
from tests.transforms.running import pipeline
from tests.transforms.typed.invoices import SCHEMA, TYPES
from tests.transforms.typed.plain import plain
from tests.transforms.writing.test_write_big_query import Api, Client, api, fits, write
from tests.transforms.writing.test_write_table import tables

__all__ = ["api"]

MODEL = ModelConfig(model="any", max_num_seqs=4)
DOCUMENTS = [{"id": number, "prompt": f"Anna Larsen: {number} lamps", "shop": number} for number in range(6)]
NAMES = ("note", "order_id", "day", "state", "size", "field_class", "tags")
"""Names of the fields in a row of SCHEMA."""


class Seen:
    """Rows as they came, by place; the workers are threads of this process."""

    rows: ClassVar[dict[str, list[Any]]] = {}

    @classmethod
    def row(cls, row: Any, place: str) -> None:
        cls.rows.setdefault(place, []).append(row)


def in_order(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=repr)


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("given", TYPES, ids=lambda each: getattr(each, "__name__", "schema"))
@pytest.mark.parametrize("details", [False, True])
def test_rows_are_everywhere_what_extract_gave(given: Any, details: bool, tmp_path: Path) -> None:
    Seen.rows.clear()
    with pipeline() as running:
        extract = Extract(given, MODEL, details=details, open_client=ConstrainedClient).with_exception_handling()
        rows, _ = running | beam.Create(DOCUMENTS) | extract
        _ = rows | "As they are" >> beam.Map(Seen.row, "given")
        _ = rows | beam.Reshuffle() | "Behind a coder" >> beam.Map(Seen.row, "coded")
        _ = rows | WriteTable(str(tmp_path / "rows"))
        write(rows)
    found = Seen.rows["given"]
    assert len(found) > 3
    expected = in_order([plain(row) for row in found])
    assert in_order([plain(row) for row in Seen.rows["coded"]]) == expected
    for row in [*found, *Seen.rows["coded"]]:
        value = row.value if details else row
        assert value._fields == NAMES if given is SCHEMA else type(value) is given
    assert in_order(tables(tmp_path).to_pylist()) == expected
    assert not details or all(row.columns == f'{{"shop":{row.id}}}' for row in found)
    (fields,) = Client.made
    assert len(Api.rows) == len(found)
    assert all(fits(row, {"type": "RECORD", "mode": "REQUIRED", "fields": fields}) for row in Api.rows)
