"""Rows become what BigQuery's API takes: a table's schema, and rows in JSON that go into it."""

import base64
import datetime
import json
import re
import uuid
from collections.abc import Iterator
from decimal import Decimal
from http.server import HTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.io.gcp.bigquery_tools import gcp_bigquery, get_bq_tableschema, table_schema_to_dict
from apitools.base.py.exceptions import HttpError  # type: ignore[import-untyped, unused-ignore]
from google.auth.credentials import AnonymousCredentials

from millrace import Extract, ModelConfig, WriteBigQuery
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.writing.write_big_query import big_query_schema
from tests.servers.http_threads import JsonHandler, running
from tests.transforms.purchases import ANSWERS, Purchase, PurchasesClient
from tests.transforms.running import pipeline

MODEL = ModelConfig(model="any", max_num_seqs=4)
PATH = r"/bigquery/v2/projects/shop/datasets/tables/tables/\w+/insertAll(\?.*)?"


class Api(JsonHandler):
    """insertAll, as BigQuery has it; remembers rows, and takes them all."""

    rows: ClassVar[list[dict[str, Any]]] = []

    def _take(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert re.fullmatch(PATH, self.path)
        self.rows.extend(row["json"] for row in said["rows"])
        self.send_json({"kind": "bigquery#tableDataInsertAllResponse"})

    do_POST = _take  # noqa: N815


class Client:
    """What Beam calls: tables are made here, rows are sent by Google's own client."""

    api: ClassVar[str] = ""
    made: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.tables = SimpleNamespace(Get=_not_found, Insert=_insert)

    def insert_rows_json(self, table: str, json_rows: list[Any], **settings: Any) -> Any:
        settings.pop("timeout")
        nobody = AnonymousCredentials()  # type: ignore[no-untyped-call, unused-ignore]
        options = {"api_endpoint": self.api}
        with gcp_bigquery.Client(project="shop", credentials=nobody, client_options=options) as client:
            return client.insert_rows_json(table, json_rows, **settings)


def _not_found(_request: Any) -> None:
    raise HttpError({"status": "404"}, b"", "")


def _insert(request: Any) -> Any:
    Client.made.append(table_schema_to_dict(request.table.schema)["fields"])
    return request.table


@pytest.fixture
def api() -> Iterator[type[Api]]:
    with running(HTTPServer(("127.0.0.1", 0), Api)) as server:
        Client.api = f"http://127.0.0.1:{server.server_port}"
        Api.rows.clear()
        Client.made.clear()
        yield Api


_LEXICAL = {
    "STRING": r"(?s).*",
    "INTEGER": r"-?\d{1,19}",
    "DATE": r"\d{4}-\d\d-\d\d",
    "TIMESTAMP": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?[+-]\d\d:\d\d",
    "NUMERIC": r"-?\d{1,29}(\.\d{1,9})?",
    "BIGNUMERIC": r"-?\d{1,38}(\.\d{1,38})?",
}
_PLAIN: dict[str, tuple[type, ...]] = {"FLOAT": (int, float), "BOOLEAN": (bool,)}


def fits(value: Any, field: dict[str, Any]) -> bool:
    """Whether BigQuery would take it."""
    if field["mode"] == "REPEATED":
        return isinstance(value, list) and all(fits(each, field | {"mode": "REQUIRED"}) for each in value)
    if value is None:
        return bool(field["mode"] == "NULLABLE")
    if field["type"] == "RECORD":
        inner = {each["name"]: each for each in field["fields"]}
        return value.keys() == inner.keys() and all(fits(value[name], each) for name, each in inner.items())
    if field["type"] in _PLAIN:
        return type(value) in _PLAIN[field["type"]]
    return isinstance(value, str) and re.fullmatch(_LEXICAL[field["type"]], value) is not None


def write(rows: Any) -> None:
    """Write to a table that Beam has not seen, for it makes none twice."""
    table = f"shop:tables.t{uuid.uuid4().hex}"
    _ = rows | WriteBigQuery(table, method="STREAMING_INSERTS", test_client=Client())


def written(rows: Any, client: Any, details: bool) -> None:
    with pipeline() as running:
        documents = running | beam.Create([{"id": f"{at}", "prompt": f"{at}", "shop": at} for at in range(3)])
        write(documents | Extract(rows, MODEL, details=details, open_client=client))


def test_rows_arrive_as_they_were_extracted_in_a_table_that_is_made_for_them(api: type[Api]) -> None:
    written(Purchase, PurchasesClient, details=False)
    (fields,) = Client.made
    assert {field["name"]: (field["type"], field["mode"]) for field in fields} == {
        "number": ("STRING", "REQUIRED"),
        "day": ("DATE", "REQUIRED"),
        "sent": ("TIMESTAMP", "NULLABLE"),
        "total": ("NUMERIC", "REQUIRED"),
        "currency": ("STRING", "REQUIRED"),
        "paid": ("BOOLEAN", "REQUIRED"),
        "weight": ("FLOAT", "REQUIRED"),
        "pieces": ("INTEGER", "REQUIRED"),
        "city": ("RECORD", "REQUIRED"),
        "lines": ("RECORD", "REPEATED"),
        "tags": ("STRING", "REPEATED"),
    }
    expected = [
        answer | {"tags": answer["tags"] or [], "pieces": str(answer["pieces"]), "sent": sent}
        for answer, sent in zip(ANSWERS, SENT, strict=True)
    ]
    assert sorted(api.rows, key=lambda row: str(row["number"])) == expected


SENT = ["2024-02-29T23:30:00.500000+00:00", None, "2024-02-29T12:00:00+00:00"]


def test_decimals_have_room_and_mappings_are_pairs() -> None:
    schema = pa.schema(
        [
            ("small", pa.decimal128(38, 9)),
            ("exact", pa.decimal128(20, 10)),
            ("wide", pa.decimal128(30, 0)),
            ("spans", pa.map_(pa.string(), pa.struct([pa.field("start", pa.int64(), nullable=False)]))),
            ("bytes", pa.binary()),
        ]
    )
    found = big_query_schema(pa.schema([field for field in schema if field.name != "spans"]))
    assert [field["type"] for field in found["fields"]] == ["NUMERIC", "BIGNUMERIC", "BIGNUMERIC", "BYTES"]
    pairs = big_query_schema(pa.schema([schema.field("spans")]))["fields"][0]
    assert (pairs["type"], pairs["mode"], [each["name"] for each in pairs["fields"]]) == (
        *("RECORD", "REPEATED"),
        ["key", "value"],
    )
    assert len(get_bq_tableschema(found).fields) == 4


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.list_(pa.string())), pa.list_(pa.field("element", pa.string())), pa.decimal256(76, 10)]
)
def test_what_big_query_has_no_type_for_is_refused_by_its_field(kind: pa.DataType) -> None:
    with pytest.raises(ConfigError, match=r"^given: "):
        big_query_schema(pa.schema([("given", kind)]))


def test_the_schema_is_the_rows_own() -> None:
    with pytest.raises(ConfigError, match="schema: "):
        WriteBigQuery("p:d.t", schema="a:STRING")


class Odd(NamedTuple):
    data: bytes
    local: datetime.datetime
    price: Decimal


def test_values_that_json_has_no_type_for_are_texts(api: type[Api]) -> None:
    row = Odd(b"\xff\x00", datetime.datetime(2026, 3, 1, 1), Decimal("1E+3"))
    with pipeline() as running:
        write(running | beam.Create([row]).with_output_types(Odd))
    assert api.rows == [
        {"data": base64.b64encode(row.data).decode(), "local": "2026-03-01T01:00:00+00:00", "price": "1000"}
    ]
