"""Documents: files read whole, and the columns that hold them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.elements.completions import DeadLetter, Prompt
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.files.formats import input_format
from millrace.transforms.reading.count import count_rows
from millrace.transforms.reading.file_ranges import match_files, split_file
from millrace.transforms.reading.positions import find_row
from millrace.transforms.reading.read_rows import read_range
from millrace.transforms.reading.row_places import Position


def read(path: Path, named: str = "documents", limit: int = 10_000, **shape: Any) -> list[Prompt | DeadLetter]:
    parts = [part for file in match_files([str(path)]) for part in split_file(file, named)]
    whole = RowShape(documents=True, row_params=False, **shape)
    return [row for part in parts for row in read_range(part, whole, limit)]


def read_bytes(path: Path, content: bytes, **options: Any) -> Prompt | DeadLetter:
    path.write_bytes(content)
    (row,) = read(path, **options)
    return row


def test_a_text_file_is_one_document_known_by_its_path(tmp_path: Path) -> None:
    row = read_bytes(tmp_path / "a.txt", "\ufeffline 1\n\nline 2 é\r\n".encode())
    assert row == Prompt(id=f"{tmp_path}/a.txt", text="line 1\n\nline 2 é\r\n", source=f"{tmp_path}/a.txt")
    squeezed = read_bytes(tmp_path / "b.md.gz", gzip.compress(b"# one\ntwo\n"))
    assert isinstance(squeezed, Prompt)
    assert squeezed.text == "# one\ntwo\n"
    assert count_rows([f"{tmp_path}/*"], "documents") == (2, True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf \n", "the file is empty"),
        (b"x" * 11, "the file is longer than 10 bytes"),
        (b"a\xffb", "not UTF-8: invalid start byte at byte 1 of the file"),
    ],
)
def test_a_file_that_is_no_document_is_a_dead_letter(tmp_path: Path, content: bytes, reason: str) -> None:
    letter = read_bytes(tmp_path / "a.txt", content, limit=10)
    assert isinstance(letter, DeadLetter)
    assert (letter.id, letter.source, letter.reason) == (f"{tmp_path}/a.txt", f"{tmp_path}/a.txt", reason)


def test_a_file_of_just_the_limit_is_read(tmp_path: Path) -> None:
    assert isinstance(read_bytes(tmp_path / "a.txt", b"x" * 10, limit=10), Prompt)


def test_tables_go_by_their_extensions_and_every_other_file_is_whole() -> None:
    found = {name: input_format(name, "documents") for name in ("a.jsonl", "a.csv.gz", "a.pq", "a.txt", "a.eml", "a")}
    assert found == {
        "a.jsonl": "jsonl",
        "a.csv.gz": "csv",
        "a.pq": "parquet",
        "a.txt": "file",
        "a.eml": "file",
        "a": "file",
    }
    assert input_format("a.json", "file") == "file"
    assert input_format("a.txt", "text") == "text"
    with pytest.raises(ConfigError, match="documents"):
        input_format("a.txt", "pdf")


@pytest.mark.parametrize("column", ["text", "document", "prompt"])
def test_a_document_is_in_a_column_and_the_others_ride_along(tmp_path: Path, column: str) -> None:
    others = {"priority": "high", "messages": "3", "stop": "x"}
    table = pa.Table.from_pylist([{column: "one", "id": 7, **others}])
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text(f"id,{column},priority,messages,stop\n7,one,high,3,x\n")
    (tmp_path / "c.jsonl").write_text(json.dumps({column: "one", "id": 7, **others}))
    for row in read(tmp_path / "*"):
        assert isinstance(row, Prompt)
        assert (row.id, row.text, row.columns, row.params) == ("7", "one", others, {})


def test_two_columns_that_may_be_the_document_are_told_unless_one_is_named(tmp_path: Path) -> None:
    line = json.dumps({"text": "one", "prompt": "two", "body": {"a": 1}, "custom_id": "x"}).encode()
    letter = read_bytes(tmp_path / "a.jsonl", line)
    assert isinstance(letter, DeadLetter)
    assert letter.reason == "both `text` and `prompt` in the row: name one of them in text_column (--text_column)"
    none = read_bytes(tmp_path / "a.jsonl", b'{"body": "one"}')
    assert isinstance(none, DeadLetter)
    assert none.reason.endswith("in the row (its columns: `body`): name the text column in text_column (--text_column)")
    named = read_bytes(tmp_path / "a.jsonl", line, prompt_column="prompt")
    assert isinstance(named, Prompt)
    assert (named.text, named.columns) == ("two", {"text": "one", "body": {"a": 1}})


def test_there_is_no_row_to_look_for_in_a_file_that_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(ConfigError, match="one row"):
        find_row(Position(f"{tmp_path}/a.txt", "@", 0), RowShape(), "file")
