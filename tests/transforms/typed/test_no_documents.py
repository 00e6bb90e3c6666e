"""An element that is no document is a dead letter that names the column, what it holds and what it takes."""

import datetime
import decimal
import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace import Classify, Extract, ModelConfig, Prompt, Span
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.transforms.elements.completions import DeadLetter
from millrace.transforms.elements.prompts import as_prompt
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.reading.file_ranges import match_files, split_file
from millrace.transforms.reading.read_rows import read_range
from millrace.transforms.requests.row_output import RowOutputTransform
from millrace.transforms.typed.documents import rows_of_documents
from tests.transforms.constrained_client import ConstrainedClient
from tests.transforms.running import check, pipeline

MODEL = ModelConfig(model="any", max_num_seqs=4)
TAKES = "takes a document: text, a Prompt of text, or a mapping with it as `text`, `document` or `prompt`"


class Named(NamedTuple):
    name: Annotated[str, Span()]


def reason(element: Any, column: str | None = None) -> str:
    with pytest.raises(InvalidRequest) as raised:
        as_prompt(element, rows_of_documents(column))
    return str(raised.value)


@pytest.mark.parametrize(
    ("element", "kind"),
    [
        (17, "int"),
        (True, "bool"),
        (1.5, "float"),
        (None, "NoneType"),
        (b"a", "bytes"),
        ([1, 2], "list"),
        ([{"role": "user", "content": "x"}], "list"),
        (("a", "b", "c"), "tuple"),
        (decimal.Decimal("1.5"), "Decimal"),
        (np.int64(3), "int"),
        (np.bool_(True), "bool"),
        (np.array([1.5]), "list"),
        (object(), "object"),
    ],
)
def test_an_element_that_is_no_document_is_told_what_documents_are(element: Any, kind: str) -> None:
    assert reason(element) == f"an element of type {kind}: {TAKES}"
    assert reason(element, "body").endswith("or a mapping with it as `body`")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (17, "is a number"),
        (np.float32(1.5), "is a number"),
        (False, "is a boolean"),
        (None, "is null"),
        (b"a", "is a value of type bytes"),
        ([1, 2], "is a list"),
        (["a"], "is a list"),
        ([{"role": "user", "content": "x"}], "is a list"),
        ({"a": 1}, "is an object"),
        (decimal.Decimal("1.5"), "is a value of type Decimal"),
        (datetime.date(2026, 1, 1), "is a value of type date"),
    ],
)
def test_a_column_that_holds_no_document_is_named(value: Any, said: str) -> None:
    assert reason({"text": value}) == f"`text` {said}: takes a document, which is text"
    assert reason({"body": value, "text": "x"}, "body").startswith(f"`body` {said}")


def test_an_empty_document_is_told_as_that() -> None:
    assert reason("") == "the document is empty"
    assert reason({"text": ""}) == "`text` is empty"


def test_numpy_s_strings_are_documents_and_its_numbers_columns() -> None:
    shape = rows_of_documents(None)
    assert as_prompt(np.str_("a"), shape).text == "a"
    prompt = as_prompt({"text": np.str_("a"), "id": np.int64(3), "n": np.array([1]), "m": [np.bool_(True)]}, shape)
    assert prompt == Prompt(id="3", text="a", columns={"n": [1], "m": [True]})
    assert type(prompt.text) is str


@pytest.mark.parametrize(("row", "named"), [({"text": "x", "n": object()}, "n"), ("a\ud800b", "the prompt")])
def test_what_json_does_not_have_fails_its_row_by_name(row: Any, named: str) -> None:
    assert reason(row).startswith(f"{named}: takes what JSON has: ")


ELEMENTS = [17, True, None, {"text": 17}, {"text": ""}, {"text": "Anna", "n": np.int64(3)}, ("key", 17)]


@pytest.mark.parametrize("name", ["Extract", "Classify"])
def test_neighbours_of_what_is_no_document_are_answered(name: str) -> None:
    transforms: dict[str, RowOutputTransform] = {
        "Extract": Extract(Named, MODEL, details=True, open_client=ConstrainedClient),
        "Classify": Classify(["a", "b"], MODEL, open_client=StandInClient),
    }
    with pipeline() as running:
        rows, letters = running | beam.Create(ELEMENTS) | transforms[name].with_exception_handling()
        check(rows | beam.Map(lambda row: row.columns), lambda found: found == ['{"n":3}'], "rows")
        plain = letters | beam.Map(lambda each: each[1] if isinstance(each, tuple) else each)
        check(
            plain | "reasons" >> beam.Map(lambda letter: (letter.error, letter.reason)),
            lambda found: (
                sorted(found)
                == sorted(
                    ("InvalidRequest", said)
                    for said in [
                        *(f"an element of type {kind}: {TAKES}" for kind in ("int", "bool", "NoneType", "int")),
                        "`text` is a number: takes a document, which is text",
                        "`text` is empty",
                    ]
                )
            ),
            "letters",
        )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([17, None]), "is a number"),
        (pa.array([1.5, None]), "is a number"),
        (pa.array([True, None]), "is a boolean"),
        (pa.array([b"a", None]), "is a value of type bytes"),
        (pa.array([decimal.Decimal("1.5"), None]), "is a value of type Decimal"),
        (pa.array([datetime.date(2026, 1, 1), None]), "is a value of type date"),
        (pa.array([["a"], None]), "is a list"),
    ],
)
def test_a_parquet_column_of_no_documents_is_named(tmp_path: Path, values: pa.Array, said: str) -> None:
    pq.write_table(pa.table({"body": values}), tmp_path / "a.parquet")
    expected = [f"`body` {said}: takes a document, which is text", "`body` is null: takes a document, which is text"]
    assert reasons(tmp_path / "a.parquet", "body") == expected


def test_rows_of_jsonl_and_csv_are_told_the_same(tmp_path: Path) -> None:
    values = [17, True, 1.5, None, [1], ""]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": value}) + "\n" for value in values) + "17\n")
    said = ["a number", "a boolean", "a number", "null", "a list"]
    assert reasons(tmp_path / "a.jsonl", "body") == [
        *(f"`body` is {each}: takes a document, which is text" for each in said),
        "`body` is empty",
        "a row is an object or a string, not a number",
    ]
    (tmp_path / "a.csv").write_text('n,body\n1,17\n2,""\n')
    assert reasons(tmp_path / "a.csv", "body") == ["`body` is empty"]


def reasons(path: Path, column: str) -> list[str]:
    """The reasons of a file's dead letters, in order."""
    parts = [part for file in match_files([str(path)]) for part in split_file(file, None)]
    rows = [row for part in parts for row in read_range(part, rows_of_documents(column))]
    return [row.reason for row in rows if isinstance(row, DeadLetter)]
