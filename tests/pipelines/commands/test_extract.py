"""`millrace extract` and `millrace classify`, with real processes."""

import datetime
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.pipelines.cli import dispatch
from tests.json_lines import rows_of

MODULE = """
import dataclasses, datetime
from decimal import Decimal
from typing import Annotated, Literal
import pydantic
from millrace import Ask, Span

@dataclasses.dataclass
class Line:
    item: Annotated[str, Span()]
    quantity: Annotated[int, pydantic.Field(ge=0, le=99)]

@dataclasses.dataclass
class Invoice:
    number: Annotated[str, Span()]
    issued: Annotated[datetime.date, Ask("the day it was issued")]
    total: Annotated[Decimal, pydantic.Field(decimal_places=2, max_digits=8)]
    currency: Literal["EUR", "USD"]
    lines: Annotated[list[Line], pydantic.Field(max_length=2)]
"""
FLAGS = ["--kv_cache_gib", "0.05", "--linger", "20"]


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for number in range(4):
        (tmp_path / f"docs/{number}.txt").write_text(
            f"Invoice {number}\n\n2 lamps for Bo, 12.50 EUR, 2024-05-0{number + 1}\n"
        )
    (tmp_path / "docs/empty.txt").touch()
    (tmp_path / "typed_invoices.py").write_text(MODULE)
    return "docs/*.txt"


@pytest.mark.slow
@pytest.mark.usefixtures("shared_runtime")
def test_text_files_become_rows_of_parquet(documents: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--input", documents, "--schema", "typed_invoices:Invoice", "--output", "out/rows.parquet", *FLAGS]
    assert dispatch(["extract", *flags]) == 0
    (path,) = tmp_path.glob("out/rows-*.parquet")
    table = pq.read_table(path)
    assert table.schema.field("issued").type == pa.date32()
    assert table.schema.field("total").type == pa.decimal128(8, 2)
    found = sorted(table.to_pylist(), key=lambda row: row["id"])
    assert [row["id"] for row in found] == [f"docs/{number}.txt" for number in range(4)]
    for row in found:
        text = Path(row["id"]).read_text()
        assert isinstance(row["issued"], datetime.date)
        assert isinstance(row["total"], Decimal)
        assert row["currency"] in ("EUR", "USD")
        spans = {name: text[where["start"] : where["end"]] for name, where in row["spans"]}
        items = {f"lines[{at}].item": line["item"] for at, line in enumerate(row["lines"])}
        assert spans == {"number": row["number"], **items}
        assert row["confidence"] <= 0
    frame = table.to_pandas()
    assert frame["total"].sum() == sum(row["total"] for row in found)
    (dead,) = rows_of(tmp_path, "out/rows.dead_letters-*.jsonl")
    assert (dead["id"], dead["reason"]) == ("docs/empty.txt", "the file is empty")
    shown = capsys.readouterr().out
    assert "4 completions" in shown
    assert '{"number": ' in shown

    Path("docs/4.txt").write_text("Invoice 4 over 7 USD")
    assert dispatch(["extract", *flags]) == 2
    assert dispatch(["extract", *flags, "--resume"]) == 0  # and one more job on the model that is loaded
    assert "1 completion in" in capsys.readouterr().out
    added = pq.read_table(next(tmp_path.glob("out/rows-resume1-*.parquet"))).to_pylist()
    assert [row["id"] for row in added] == ["docs/4.txt"]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_runtime")
def test_an_answer_for_which_there_are_too_few_tokens_is_a_dead_letter_that_has_it(tmp_path: Path) -> None:
    source = str(Path(__file__).parents[3] / "examples/documents/orders/*.txt")
    found = {}
    for most in (1024, 130):
        flags = [
            "--input",
            source,
            "--schema",
            "examples.documents.rows:Order",
            "--output",
            f"{tmp_path}/{most}",
            *FLAGS,
        ]
        assert dispatch(["extract", *flags, "--max_tokens", str(most), "--quiet"]) == 0
        found[most] = {row["id"]: row["lines"] for row in rows_of(tmp_path, f"{most}-*.jsonl")}
    assert len(found[1024]) == 20
    assert found[130].items() <= found[1024].items(), "what is shorter than it would be is no row"
    letters = rows_of(tmp_path, "130.dead_letters-*.jsonl")
    assert {letter["id"] for letter in letters} == found[1024].keys() - found[130].keys()
    assert letters
    assert {letter["error"] for letter in letters} == {"ConstraintNotMet"}
    cut = "the output is not complete after 130 tokens, and max_tokens=130 allows no more"
    assert {letter["reason"] for letter in letters} == {cut}
    assert all(letter["answer"].startswith('{"number":') for letter in letters)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_runtime")
def test_columns_become_rows_of_json_under_a_schema_with_examples_and_a_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    schema = {
        "type": "object",
        "required": ["id", "city"],
        "properties": {
            "id": {"type": "integer", "minimum": 0, "maximum": 99},
            "city": {"type": ["string", "null"], "maxLength": 8},
        },
    }
    Path("s.json").write_text(json.dumps(schema))
    Path("t.txt").write_text("{examples}{fields}\nText: {document}\nJSON:")
    Path("e.jsonl").write_text(json.dumps({"text": "7 to Oslo", "answer": {"id": 7, "city": "Oslo"}}))
    Path("d.csv").write_text('id,body,shop\na,"12 to\nLima",x\nb,"13 to Rome",y\n')
    flags = ["--input", "d.csv", "--text_column", "body", "--schema", "s.json", "--output", "out/r", "--quiet", *FLAGS]
    assert dispatch(["extract", *flags, "--template", "t.txt", "--examples", "e.jsonl"]) == 0
    found = {row["id"]: row for row in rows_of(tmp_path, "out/r-*.jsonl")}
    assert {name: row["columns"] for name, row in found.items()} == {"a": {"shop": "x"}, "b": {"shop": "y"}}
    assert all(isinstance(row["id_"], int) and 0 <= row["id_"] <= 99 for row in found.values())


@pytest.mark.usefixtures("shared_runtime")
def test_documents_get_labels(documents: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--input", documents, "--output", "out/l", "--backend", "fake", "--linger", "20"]
    assert dispatch(["classify", *flags, "--labels", "good,bad,odd"]) == 0
    found = rows_of(tmp_path, "out/l-*.jsonl")
    assert sorted(row["id"] for row in found) == [f"docs/{number}.txt" for number in range(4)]
    for row in found:
        assert list(row["probabilities"]) == ["good", "bad", "odd"]
        assert sum(row["probabilities"].values()) == pytest.approx(1)
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)
    assert len(rows_of(tmp_path, "out/l.dead_letters-*.jsonl")) == 1
    assert f"{found[0]['id']}: {found[0]['label']} (" in capsys.readouterr().out

    Path("docs/4.txt").write_text("one\ntwo\n")
    lines = ["--input_format", "text", "--input", "docs/4.txt", "--output", "out/m.parquet"]
    assert dispatch(["classify", *flags, *lines, "--labels", "good,bad", "--multiple", "--quiet"]) == 0
    table = pq.read_table(next(tmp_path.glob("out/m-*.parquet")))
    assert {"docs/4.txt@0", "docs/4.txt@4"} <= {*table.column("id").to_pylist()}
    labels = table.to_pylist()[0]
    assert {name for name, p in labels["probabilities"] if p >= 0.5} == {*labels["labels"]}
    assert dispatch(["classify", *flags, "--labels", "good,bad", "--resume"]) == 2
    assert "--labels good,bad: the rows of out/l, to which --resume would add," in capsys.readouterr().err
    assert dispatch(["classify", *flags, "--labels", "good,bad,odd", "--resume"]) == 0
    assert "1 completion in" in capsys.readouterr().out


@pytest.mark.usefixtures("shared_runtime")
def test_answers_that_cannot_end_are_dead_letters_and_a_job_of_none_fails(documents: str, tmp_path: Path) -> None:
    flags = ["--input", documents, "--schema", "typed_invoices:Invoice", "--output", "out/r.parquet", "--quiet"]
    assert dispatch(["extract", *flags, "--backend", "fake", "--max_tokens", "2", "--linger", "20"]) == 1
    letters = rows_of(tmp_path, "out/r.dead_letters-*.jsonl")
    assert {letter["error"] for letter in letters} == {"UnreadableRow", "ConstraintNotMet"}
    assert not list(tmp_path.glob("out/r-*.parquet"))
