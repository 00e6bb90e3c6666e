"""Rows of a user's type in files: the types that Parquet has for them, and JSON as it was answered."""

import datetime
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace import Extract, ModelConfig, Prompt, SkipCompleted, WriteCompletions
from millrace.model_manager.wire.errors import AnswerRejected
from millrace.transforms.elements.task_results import Classified, Extracted
from millrace.transforms.typed.answer_values import read
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.key_paths import renamed_keys
from millrace.transforms.typed.values import decoded, value_of
from millrace.transforms.writing.arrow_schema import extracted_schema
from millrace.transforms.writing.completed_rows import completed_ids
from millrace.transforms.writing.output_rows import json_line, write_parquet
from tests.transforms.constrained_client import ConstrainedClient
from tests.transforms.running import pipeline
from tests.transforms.typed.invoices import TYPES, Invoice

MODEL = ModelConfig(backend="fake")
ANSWER = {
    "number": "A-1",
    "issued": "2024-02-29",
    "sent": "2024-02-29T23:30:00.5-01:00",
    "currency": "EUR",
    "kind": None,
    "paid": True,
    "lines": [{"item": "lamp", "quantity": 2, "price": 4.50}],
    "weight": 1,
    "codes": ["AB"],
}


def table_of(lines: list[bytes], rows: Any, folder: Path) -> pa.Table:
    with (folder / "rows.parquet").open("wb") as stream:
        assert write_parquet(lines, stream, extracted_schema(record_of(rows))) == len(lines)
    return pq.read_table(folder / "rows.parquet")


def extracted(answer: dict[str, Any], **values: Any) -> Extracted:
    return Extracted(id="a.txt", answer=json.dumps(answer), confidence=-0.5, model="m", **values)


def test_values_have_the_types_of_parquet(tmp_path: Path) -> None:
    found = extracted(ANSWER, confidences={"number": -1.0}, spans={"number": (3, 6)}, columns={"shop": "Oslo"})
    table = table_of([json_line(found)], Invoice, tmp_path)
    types = {field.name: field.type for field in table.schema}
    assert types["issued"] == pa.date32()
    assert types["sent"] == pa.timestamp("us", tz="UTC")
    assert pa.types.is_decimal(types["lines"].value_type.field("price").type)
    codes = pa.list_(pa.field("element", pa.string(), nullable=False))
    assert (types["paid"], types["weight"], types["codes"]) == (pa.bool_(), pa.float64(), codes)
    (row,) = table.to_pylist()
    assert (row["id"], row["issued"], row["weight"], row["kind"], row["note"]) == (
        *("a.txt", datetime.date(2024, 2, 29), 1.0),
        *(None, None),
    )
    assert row["sent"] == datetime.datetime(2024, 3, 1, 0, 30, 0, 500_000, tzinfo=datetime.UTC)
    assert row["lines"] == [{"item": "lamp", "quantity": 2, "price": Decimal("4.50")}]
    assert (row["confidence"], row["confidences"]) == (-0.5, [("number", -1.0)])
    assert row["spans"] == [("number", {"start": 3, "end": 6})]
    assert json.loads(row["columns"]) == {"shop": "Oslo"}
    assert table.to_pandas()["issued"][0] == datetime.date(2024, 2, 29)


def test_fields_of_our_names_have_an_underscore_and_json_is_text_in_parquet_alone(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "id_": {"type": "integer"},
            "finish_reason": {"type": "string"},
            "any": {"type": ["string", "number", "array"]},
            "list": {"type": "array", "items": {"type": ["string", "number"]}},
        },
    }
    answer = {"id": 1, "id_": 2, "finish_reason": "error", "any": ["x", 0.10], "list": ["x", 1]}
    line = json_line(extracted(answer))
    row = json.loads(line)
    assert (row["id"], row["id_"], row["id__"], row["finish_reason_"], row["any"]) == (
        "a.txt",
        1,
        2,
        "error",
        ["x", 0.1],
    )
    (typed,) = table_of([line], schema, tmp_path).to_pylist()
    assert (typed["id"], typed["id_"], typed["id__"]) == ("a.txt", 1, 2)
    assert (typed["any"], typed["list"]) == ('["x", 0.1]', ['"x"', "1"])
    assert list(completed_ids(str(tmp_path / "rows.parquet"))) == ["a.txt"]


def test_paths_are_of_the_names_that_rows_have() -> None:
    document = {"type": "object", "properties": {"a.b": {"type": "string"}, "id": {"type": "integer"}}}
    keys = {"order-id": {"type": "integer"}, "class": {"type": "string"}, "model": {"type": "string"}}
    lists = {"lines-of": {"type": "array", "items": {"type": "array", "items": document}}}
    odd = {"": {"type": "integer"}, "a.b": {"type": "integer"}, "plain": document}
    schema = {"type": "object", "properties": {**keys, **lists, **odd}}
    answer = {"order-id": 1, "class": "x", "model": "m", "lines-of": [[{"a.b": "y", "id": 2}]], "": 3, "a.b": 4}
    reading = read(record_of(schema), json.dumps(answer | {"plain": {"a.b": "z"}}), "")
    confidences = {path: -1.0 for path in reading.ranges if path}
    spans = {"lines_of[0][0].a_b": (1, 2), "model": (3, 4)}
    found = extracted(answer, confidences=confidences, spans=spans, keys=renamed_keys(record_of(schema)))
    row = json.loads(json_line(found))
    assert list(row["confidences"]) == [
        *("order-id", "class", "model_"),
        *('lines-of[0][0]["a.b"]', "lines-of[0][0].id", "lines-of[0][0]", "lines-of[0]", "lines-of"),
        *('[""]', '["a.b"]', 'plain["a.b"]', "plain"),
    ]
    assert list(row["spans"]) == ['lines-of[0][0]["a.b"]', "model_"]
    assert {"order-id", "class", "model_", "lines-of", "a.b"} <= row.keys()


@pytest.mark.parametrize(
    "any_json",
    [{"type": ["object", "null"]}, {"type": ["string", "integer", "null"]}, {}, {"anyOf": [{}, {"type": "null"}]}],
)
def test_null_may_be_any_json_and_is_text_as_that_is(any_json: Any, tmp_path: Path) -> None:
    items = {"type": "array", "items": any_json}
    inner = {"type": "object", "properties": {"a": any_json, "b": any_json}, "required": ["a"]}
    properties = {"a": any_json, "b": any_json, "list": items, "inner": inner}
    schema = {"type": "object", "properties": properties, "required": ["a", "list", "inner"]}
    answer = {"a": None, "list": [None, {"x": 1}], "inner": {"a": None, "b": None}}
    (row,) = table_of([json_line(extracted(answer))], schema, tmp_path).to_pylist()
    assert (row["a"], row["b"], row["list"]) == ("null", None, ["null", '{"x": 1}'])
    assert row["inner"] == {"a": "null", "b": "null"}
    value = value_of(record_of(schema), answer)
    assert (value.a, value.b, value.list, tuple(value.inner)) == ("null", None, row["list"], ("null", "null"))


def test_any_json_keeps_its_digits(tmp_path: Path) -> None:
    answer = '{"any": {"price": 4.50, "big": 0.12345678901234567890, "list": [1e5]}}'
    schema = {"type": "object", "properties": {"any": {"type": ["object", "string"]}}}
    found = Extracted(id="a", answer=answer, confidence=0, model="m", columns={"n": 1.5})
    (row,) = table_of([json_line(found)], schema, tmp_path).to_pylist()
    assert row["any"] == '{"price": 4.50, "big": 0.12345678901234567890, "list": [1E+5]}'
    assert row["columns"] == '{"n": 1.5}'


@pytest.mark.parametrize("rows", TYPES, ids=lambda each: getattr(each, "__name__", "schema"))
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_whatever_is_answered_is_written_and_not_asked_again(rows: Any, form: str, tmp_path: Path) -> None:
    record = record_of(rows)
    settings: dict[str, Any] = {"output_format": form, "schema": extracted_schema(record)}
    documents = [Prompt(id=f"{at}", text=f"Anna bought {at} lamps é in Oslo.") for at in range(12)]
    for run in ("refuse", "resume"):
        with pipeline() as running:
            given = running | beam.Create(documents)
            if run == "resume":
                given = given | SkipCompleted(f"{tmp_path}/out/r", **settings)
            transform = Extract(rows, MODEL, open_client=ConstrainedClient).as_results().with_exception_handling()
            results = given | transform
            _ = results | WriteCompletions(f"{tmp_path}/out/r", if_exists=run, **settings)
    (path,) = (tmp_path / "out").glob(f"r-*.{form}")
    if form == "parquet":
        found = pq.read_table(path).to_pylist()
    else:
        found = [decoded(line) for line in path.read_text().splitlines()]
        for row in found:
            value_of(record, row)  # the fields of a row are a value of the type
    letters = [json.loads(line) for each in (tmp_path / "out").glob("*dead*") for line in each.read_text().splitlines()]
    assert {row["id"] for row in found}.isdisjoint({letter["id"] for letter in letters})
    assert sorted(row["id"] for row in [*found, *letters]) == sorted(each.id for each in documents)
    assert len(found) >= 6
    assert all(row["confidence"] <= 0 for row in found)
    for row in found:
        paths = row["confidences"] if form == "jsonl" else dict(row["confidences"])
        top = {re.split(r"[.[]", path)[0] for path in paths}
        assert top <= row.keys() - {"id", "columns", "model", "revision"}


def test_an_answer_with_half_a_character_is_no_row() -> None:
    assert decoded(r'{"a": "\ud83d\ude00"}') == {"a": "😀"}
    with pytest.raises(AnswerRejected, match="surrogate"):
        decoded(r'{"a": ["\ud83d"]}')


def test_labels_are_columns(tmp_path: Path) -> None:
    row = Classified(id="1", labels=["b"], probabilities={"a": 0.25, "b": 0.75}, model="m", columns={"n": 1})
    none = Classified(id="2", labels=[], probabilities={"a": 0.25, "b": 0.25}, model="m")
    lines = [json_line(each) for each in (row, none)]
    assert json.loads(lines[0]) | {"usage": 0} == {
        "id": "1",
        "label": "b",
        "labels": ["b"],
        "probabilities": {"a": 0.25, "b": 0.75},
        "usage": 0,
        "model": "m",
        "columns": {"n": 1},
    }
    with (tmp_path / "r.parquet").open("wb") as stream:
        write_parquet(lines, stream)
    first, second = pq.read_table(tmp_path / "r.parquet").to_pylist()
    assert (first["label"], first["labels"], first["probabilities"]) == ("b", ["b"], [("a", 0.25), ("b", 0.75)])
    assert (second["label"], second["labels"]) == (None, [])
    assert list(completed_ids(str(tmp_path / "r.parquet"))) == ["1", "2"]
