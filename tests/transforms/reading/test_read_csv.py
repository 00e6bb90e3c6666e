"""CSV files that are not what they seem: quotes, line ends, encodings, headers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from millrace.transforms.elements.completions import DeadLetter, Prompt
from tests.transforms.reading.rows_read import read_bytes, reasons, texts


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'prompt,id\n"one,1\ntwo,2\n', 2),
        (b'id,prompt\n1,one\n2,"two\n3,three\n', 3),
        (b'id,prompt\n1,one\n2,"two', 3),
        (b'id,prompt\n"1\n2","a ""b""\n3,c\n', 3),
        (b'id,prompt\n1,"', 2),
    ],
)
def test_a_quote_that_does_not_close_is_said_with_its_line(tmp_path: Path, content: bytes, line: int) -> None:
    (letter,) = (row for row in read_bytes(tmp_path, "a.csv", content) if isinstance(row, DeadLetter))
    assert letter.error == "UnreadableRow"
    assert letter.reason == f"a quote opens on line {line} and does not close"
    assert letter.row


def test_quotes_that_close_end_no_row(tmp_path: Path) -> None:
    content = b'id,prompt\n1,"one\nof ""two"""\n2,"two"'
    assert texts(read_bytes(tmp_path, "a.csv", content)) == ['one\nof "two"', "two"]


def test_a_row_of_several_lines_that_has_too_few_fields_says_its_lines(tmp_path: Path) -> None:
    rows = read_bytes(tmp_path, "a.csv", b'prompt,id,n\n"one,1,1\ntwo "x",2\nthree,3,3\n')
    assert reasons(rows)[0].endswith("where the header has 3 (it goes from line 2 to line 3: does a quote not close?)")
    assert texts(rows)[-1] == "three"


def test_a_carriage_return_alone_costs_its_row(tmp_path: Path) -> None:
    rows = read_bytes(tmp_path, "a.csv", b"id,prompt\n1,o\rne\n2,two\n")
    assert texts(rows) == ["UnreadableRow", "two"]
    assert [row.source.rsplit("#")[1] for row in rows] == ["1", "2"]
    assert reasons(rows) == ["a carriage return (\\r) stands alone on line 2: lines end in \\n or \\r\\n"]


def test_a_field_over_the_limit_costs_its_row(tmp_path: Path) -> None:
    content = b'id,prompt\n1,"' + b"x\n" * 1000 + b"\n2,two\n"
    before = csv.field_size_limit(1000)
    letter, *_, last = read_bytes(tmp_path, "a.csv", content, limit=1000)
    csv.field_size_limit(before)
    assert texts([last]) == ["two"]
    assert isinstance(letter, DeadLetter)
    assert "a field is longer than " in letter.reason
    assert letter.reason.endswith("a quote opens on line 2")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("id,prompt\r\n1,one\r\n".encode("utf-16"), "UTF-16 or UTF-32, and CSV is read as UTF-8"),
        ("id,prompt\r\n1,one\r\n".encode("utf-16-le"), "UTF-16 or UTF-32, and CSV is read as UTF-8"),
        ("id,prompt\r\n1,one\r\n".encode("utf-32"), "UTF-16 or UTF-32, and CSV is read as UTF-8"),
        (b"id,prompt\r1,one\r2,two\r", "lines end in \\n or \\r\\n"),
        (b"id,prompt\r" + b"1,one\r" * 10_000, "lines end in \\n or \\r\\n"),
        (b'id,"prompt\n1,one\n', "a quote opens on line 1 and does not close"),
        (b"id,prompt,x,x\n1,one,2,3\n", "two columns are called `x`"),
    ],
)
def test_a_file_that_cannot_be_csv_is_refused_by_what_it_is(tmp_path: Path, content: bytes, said: str) -> None:
    (letter,) = read_bytes(tmp_path, "a.csv", content)
    assert isinstance(letter, DeadLetter)
    assert (letter.error, letter.id) == ("UnreadableFile", f"{tmp_path}/a.csv")
    assert said in letter.reason


def test_columns_without_a_name_are_called_by_their_number(tmp_path: Path) -> None:
    (row,) = read_bytes(tmp_path, "a.csv", b"id,prompt,a,,\n1,one,2,3,4\n")
    assert isinstance(row, Prompt)
    assert row.columns == {"a": "2", "column_4": "3", "column_5": "4"}
