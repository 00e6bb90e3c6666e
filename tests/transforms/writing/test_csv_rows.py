import csv
import io
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.request import FinishReason
from millrace.transforms.elements.completions import Completion, Prompt
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.reading.file_ranges import FileRange
from millrace.transforms.reading.read_rows import read_range
from millrace.transforms.writing.csv_rows import read_cells, write_csv
from millrace.transforms.writing.output_rows import json_line, write_rows


def written(*lines: bytes, columns: tuple[str, ...] = ("id", "value")) -> bytes:
    stream = io.BytesIO()
    assert write_csv(lines, stream, columns) == len(lines)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (b'"a, \\"b\\"\\r\\n\\u00e9"', 'a, "b"\r\né'),
        (b'"=HYPERLINK(\\"https://evil.example\\")"', '=HYPERLINK("https://evil.example")'),
        (b"null", ""),
        (b"12.3400000000000000000001", "12.3400000000000000000001"),
        (b"true", "true"),
        (b'{"a":[1,"x"]}', '{"a":[1,"x"]}'),
    ],
)
def test_text_is_as_it_is_and_other_values_are_json(value: bytes, cell: str) -> None:
    data = written(b'{"id":"a","value":' + value + b"}").decode()
    assert list(csv.reader(io.StringIO(data, newline=""))) == [["id", "value"], ["a", cell]]


def test_what_a_row_lacks_is_empty_and_without_rows_there_is_a_header() -> None:
    assert written(b'{"id":"a"}') == b"id,value\r\na,\r\n"
    assert written() == b"id,value\r\n"


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"])), min_size=1))
def test_any_texts_come_back(texts: list[str]) -> None:
    lines = [msgspec.json.encode({"id": str(at), "value": text}) for at, text in enumerate(texts)]
    assert [row["value"] for row in read_cells(io.BytesIO(written(*lines)))] == texts


def test_completions_are_read_as_prompts_again(tmp_path: Path) -> None:
    made = [
        Completion(id=str(n), text=f'line\r\n"{n}", ü', finish_reason=FinishReason.STOP, columns={"x": n})
        for n in range(3)
    ]
    with (tmp_path / "c.csv").open("wb") as stream:
        write_rows(map(json_line, made), stream, "c.csv")
    shape = RowShape(prompt_column="text")
    rows = [row for row in read_range(FileRange(f"{tmp_path}/c.csv", "csv"), shape) if isinstance(row, Prompt)]
    assert [(row.id, row.text) for row in rows] == [(each.id, each.text) for each in made]
    assert [row.columns["columns"] for row in rows] == ['{"x":0}', '{"x":1}', '{"x":2}']
