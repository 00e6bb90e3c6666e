import bz2
import csv
import datetime
import gzip
import json
import lzma
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from millrace.transforms.elements.completions import DeadLetter, Prompt
from millrace.transforms.elements.prompt_rows import RowShape, parse_row
from millrace.transforms.reading.file_ranges import match_files, split_file
from millrace.transforms.reading.read_prompts import ReadRange
from millrace.transforms.reading.row_letters import shortened
from tests.transforms.reading.rows_read import params, read, read_bytes, reasons, texts

COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}
BOMB = b"one\n" + bytes(2**25) + b"\ntwo\n"
CONTENTS = {
    "jsonl": b'"one"\n{"prompt": "two"}\n',
    "txt": b"one\ntwo\n",
    "csv": b"prompt\none\ntwo\n",
    "tsv": b"n\tprompt\n1\tone\n2\ttwo\n",
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("extension", CONTENTS)
def test_every_format_is_read_under_every_compression(tmp_path: Path, extension: str, compression: str) -> None:
    content = COMPRESSIONS[compression](CONTENTS[extension])
    assert texts(read_bytes(tmp_path, f"a.{extension}{compression}", content)) == ["one", "two"]


@pytest.mark.parametrize("squeezed", [".gz", ".bz2", ".xz", ".deflate"])
def test_a_small_file_that_is_one_huge_line_takes_no_memory_and_costs_that_line(tmp_path: Path, squeezed: str) -> None:
    (tmp_path / f"a.txt{squeezed}").write_bytes((COMPRESSIONS | {".deflate": zlib.compress})[squeezed](BOMB))
    tracemalloc.start()
    try:
        rows = read(tmp_path / f"a.txt{squeezed}", limit=1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert texts(rows) == ["one", "UnreadableRow", "two"]
    assert peak < len(BOMB) // 2


def test_the_format_can_be_named(tmp_path: Path) -> None:
    assert texts(read_bytes(tmp_path, "a.data", b"one\ntwo", named_format="text")) == ["one", "two"]


def test_ids_are_paths_and_positions(tmp_path: Path) -> None:
    rows = read_bytes(tmp_path, "a.jsonl", b'"one"\n\n{"prompt": "two", "id": "x"}\n"three"')
    assert [row.id for row in rows] == [f"{tmp_path}/a.jsonl@0", "x", f"{tmp_path}/a.jsonl@36"]
    assert [row.source.rsplit("@", 1)[-1] for row in rows] == ["0", "7", "36"]
    rows = read_bytes(tmp_path, "a.csv", b"prompt\none\ntwo\n")
    assert [row.id for row in rows] == [f"{tmp_path}/a.csv#1", f"{tmp_path}/a.csv#2"]


def test_large_files_are_read_in_ranges_with_the_same_ids(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"{number} " + "x" * 100}) for number in range(5000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert len(list(split_file(match_files([str(tmp_path / "a.jsonl")])[0]))) > 4
    ranges, whole = read(tmp_path / "a.jsonl"), read(tmp_path / "b.jsonl.gz")
    assert texts(ranges) == texts(whole)
    assert [row.id.split("@")[1] for row in ranges] == [row.id.split("@")[1] for row in whole]


def test_byte_order_marks_and_carriage_returns_are_no_content(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", '"one"\r\n'), ("a.txt", "one\r\n"), ("a.csv", "prompt\r\none\r\n")):
        assert texts(read_bytes(tmp_path, name, b"\xef\xbb\xbf" + content.encode())) == ["one"]


def test_what_is_not_json_or_not_utf8_or_too_long_becomes_a_dead_letter_among_its_neighbours(tmp_path: Path) -> None:
    content = (
        b'"one"\n{"prompt": \n"\xff"\n{"prompt": NaN}\n"' + b"x" * 2000 + b'"\n{"prompt":"\\ud800"}\n' + b"[" * 900
    )
    rows = read_bytes(tmp_path, "a.jsonl", content + b'\n"two"\n', limit=1000)
    assert texts(rows) == ["one", *["UnreadableRow"] * 6, "two"]
    letters = [row for row in rows if isinstance(row, DeadLetter)]
    assert letters[0].row == '{"prompt": '
    assert letters[1].row == '"\\xff"'
    assert "longer than 1000 bytes" in letters[3].reason
    assert all(letter.id == letter.source for letter in letters)


def test_the_dead_letter_of_a_json_row_holds_the_row_and_its_id(tmp_path: Path) -> None:
    (letter,) = read_bytes(tmp_path, "a.jsonl", b'{"id": 3, "x": [1]}\n')
    assert isinstance(letter, DeadLetter)
    assert (letter.id, letter.row, letter.error) == ("3", {"id": 3, "x": [1]}, "InvalidRequest")


def test_the_dead_letter_of_a_bad_row_has_the_id_of_the_column_that_is_named_for_it(tmp_path: Path) -> None:
    for name, content in (
        ("a.jsonl", b'{"key": 3, "id": "x"}\n'),
        ("a.csv", b"key,id,prompt,max_tokens\n3,x,a,many\n"),
    ):
        (letter,) = read_bytes(tmp_path, name, content, id_column="key")
        assert (type(letter), letter.id) == (DeadLetter, "3")


def test_a_prompt_keeps_the_row_that_it_was_read_from(tmp_path: Path) -> None:
    row = {"key": "7", "review": "Fine.", "temperature": "0.5"}
    table = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([row]), table)
    content = ",".join(row) + "\n" + ",".join(row.values()) + "\n"
    shape: dict[str, Any] = {"id_column": "key", "prompt_column": "review", "documents": True, "row_params": False}
    for prompt in read(table, **shape) + read_bytes(tmp_path, "a.csv", content.encode(), **shape):
        assert isinstance(prompt, Prompt)
        assert (prompt.id, prompt.text, prompt.row()) == ("7", "Fine.", row)
    (line,) = read_bytes(tmp_path, "a.txt", b"Fine.\n")
    assert isinstance(line, Prompt)
    assert line.row() == "Fine."


def test_the_row_of_a_prompt_from_csv_reads_as_that_prompt(tmp_path: Path) -> None:
    content = b"id,prompt,max_tokens,temperature,note\n1,Hello,16,,x\n"
    (prompt,) = read_bytes(tmp_path, "a.csv", content)
    assert isinstance(prompt, Prompt)
    again = parse_row(prompt.row(), RowShape(), position=prompt.source)
    assert (again.id, again.content, again.params, again.columns) == ("1", "Hello", {"max_tokens": 16}, {"note": "x"})


def test_rows_under_a_header_that_is_not_utf8_are_dead_letters(tmp_path: Path) -> None:
    (letter,) = read_bytes(tmp_path, "a.csv", b"prompt,caf\xe9\nHello,1\n")
    assert isinstance(letter, DeadLetter)
    assert letter.reason == "not UTF-8"


def test_rows_that_share_an_id_are_all_read(tmp_path: Path) -> None:
    rows = read_bytes(tmp_path, "a.jsonl", b'{"id": "x", "prompt": "a"}\n{"id": "x", "prompt": "b"}\n')
    assert [row.id for row in rows] == ["x", "x"]


def test_csv_has_quoted_line_ends_and_typed_parameters(tmp_path: Path) -> None:
    content = b'id,prompt,max_tokens,stop,temperature,note\n7,"a\r\nb, ""c""",5,END,,x\n8,d,,"[""p"",""q""]",0.5,\n'
    first, second = read_bytes(tmp_path, "a.csv", content)
    assert isinstance(first, Prompt)
    assert isinstance(second, Prompt)
    assert (first.id, first.text, first.columns) == ("7", 'a\r\nb, "c"', {"note": "x"})
    assert first.params == {"max_tokens": 5, "stop": "END"}
    assert second.params == {"stop": ["p", "q"], "temperature": 0.5}


def test_bad_csv_rows_become_dead_letters_among_their_neighbours(tmp_path: Path) -> None:
    content = b"prompt,max_tokens\none,1\ntwo,many\nthree\n\xff,1\n,1\nfour,2\n"
    rows = read_bytes(tmp_path, "a.csv", content)
    assert texts(rows) == ["one", "InvalidRequest", "UnreadableRow", "UnreadableRow", "InvalidRequest", "four"]


def test_csv_parameters_may_be_bare_text(tmp_path: Path) -> None:
    content = b"prompt,adapter,cache_salt,bad_words,max_tokens\na,org/lora,7,no,\nb,,,,many\n"
    good, bad = read_bytes(tmp_path, "a.csv", content)
    assert isinstance(good, Prompt)
    assert good.params == {"adapter": "org/lora", "cache_salt": "7", "bad_words": "no"}
    assert reasons([bad]) == ["max_tokens='many': takes an integer"]


def test_what_is_wrong_with_json_is_said_once(tmp_path: Path) -> None:
    (letter,) = read_bytes(tmp_path, "a.jsonl", b'{"prompt": x}\n')
    assert reasons([letter]) == ["not JSON: invalid character (byte 11)"]


def test_a_letter_has_the_beginning_of_a_long_row_that_is_not_json(tmp_path: Path) -> None:
    """Whole, a row of bytes that JSON has to escape would be six times as long in the output."""
    (letter,) = read_bytes(tmp_path, "a.jsonl", bytes(100_000) + b"\n", limit=2**20)
    part, *_ = split_file(match_files([str(tmp_path / "a.jsonl")])[0], None)
    (output,) = ReadRange(RowShape(), 2**20, strict=False).process(part)
    short = output.value
    assert isinstance(letter, DeadLetter)
    assert isinstance(short, DeadLetter)
    assert letter.row == bytes(100_000).decode(), "millrace show prints all of it"
    assert short == msgspec.structs.replace(letter, row="\0" * 65_536)
    assert short.source == f"{tmp_path / 'a.jsonl'}@0"
    (too_long,) = read_bytes(tmp_path, "b.jsonl", b'{"prompt": 1, "more": "%s"}\n' % (b"x" * 100_000), limit=2**20)
    assert shortened(too_long) is too_long, "what is JSON is kept whole"


@pytest.mark.parametrize("half", ["\\ud800", "a\\udc00", "\\ud83d\\ud83d\\ude00"])
def test_half_a_character_is_said_to_be_that(tmp_path: Path, half: str) -> None:
    good, bad = read_bytes(tmp_path, "a.jsonl", f'{{"prompt": "\\ud83d\\ude00"}}\n{{"prompt": "{half}"}}\n'.encode())
    assert texts([good]) == ["😀"]
    assert "half of a character" in reasons([bad])[0]
    assert "truncated" in reasons(read_bytes(tmp_path, "a.jsonl", b'{"prompt": "\\\\ud800'))[0]


def test_csv_fields_may_be_long(tmp_path: Path) -> None:
    rows = read_bytes(tmp_path, "a.csv", b"prompt\n" + b"x" * 300_000 + b"\n", limit=10**6)
    assert texts(rows) == ["x" * 300_000]


def test_csv_messages_are_json_in_their_cell(tmp_path: Path) -> None:
    (row,) = read_bytes(tmp_path, "a.csv", b'messages\n"[{""role"": ""user"", ""content"": ""hi""}]"\n')
    assert isinstance(row, Prompt)
    assert row.messages == [{"role": "user", "content": "hi"}]


def test_parquet_has_messages_and_nested_columns_and_types_of_its_own(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, 2],
            "messages": [[{"role": "user", "content": "hi", "name": None}], None],
            "prompt": [None, "two"],
            "max_tokens": pa.array([None, 4], pa.int32()),
            "nested": [{"a": [1, 2]}, {"a": []}],
            "when": [datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)] * 2,
            "raw": [b"ab", None],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    first, second = read(tmp_path / "a.parquet")
    assert isinstance(first, Prompt)
    assert isinstance(second, Prompt)
    assert (first.id, first.messages, first.params) == ("1", [{"role": "user", "content": "hi"}], {})
    assert first.columns == {"nested": {"a": [1, 2]}, "when": "2024-01-02T00:00:00Z", "raw": "YWI="}
    assert (second.text, second.params) == ("two", {"max_tokens": 4})


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", None]}}, "required": ["a"]}
CONSTRAINT = {"json_schema": SCHEMA}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


def batch_row(asked: Any) -> dict[str, Any]:
    return {"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "p", "response_format": asked}}


SAME_ROWS: dict[str, list[dict[str, Any]]] = {
    "structs": [{"prompt": "p", "constraint": CONSTRAINT}, {"prompt": "q", "constraint": {"regex": "a"}}],
    "schemas of other shapes": [
        {"prompt": "p", "constraint": CONSTRAINT},
        {"prompt": "q", "constraint": {"json_schema": {"anyOf": [{"type": "string", "maxLength": 3}, {"minimum": 1}]}}},
    ],
    "parameters": [{"prompt": "p", "sampling_params": {"max_tokens": 3, "constraint": CONSTRAINT}}],
    "OpenAI's rows": [batch_row(FORMAT), batch_row({"type": "text"})],
}
SAME_CELLS: dict[str, dict[str, str]] = {
    "a text": {"constraint": json.dumps(CONSTRAINT)},
    "a text of a schema in a text": {"constraint": json.dumps({"json_schema": json.dumps(SCHEMA)})},
    "parameters": {"sampling_params": json.dumps({"constraint": CONSTRAINT})},
    "parameters with a text": {"sampling_params": json.dumps({"constraint": json.dumps(CONSTRAINT)})},
}


@pytest.mark.parametrize("rows", SAME_ROWS.values(), ids=SAME_ROWS)
def test_constraints_in_structs_mean_what_they_mean_in_jsonl(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """Arrow fills each struct with nulls for the members that other rows' have."""
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert params(tmp_path / "a.parquet") == params(tmp_path / "a.jsonl")
    dead = [row.row() for row in read(tmp_path / "a.parquet") if isinstance(row, Prompt)]
    again = [parse_row(row, RowShape(), position="") for row in dead]
    assert [prompt.params for prompt in again] == params(tmp_path / "a.jsonl")


@pytest.mark.parametrize("cells", SAME_CELLS.values(), ids=SAME_CELLS)
def test_constraints_in_texts_mean_the_same_in_every_format(tmp_path: Path, cells: dict[str, str]) -> None:
    row = {"prompt": "p"} | cells
    table = pa.table({name: pa.array([value]) for name, value in row.items()})
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.binary()):
        types = {name: kind if name in cells else pa.string() for name in row}
        columns = {name: pa.array([row[name]], pa.string()).cast(types[name]) for name in row}
        pq.write_table(pa.table(columns), tmp_path / f"{kind}.parquet")
        assert params(tmp_path / f"{kind}.parquet") == [{"constraint": CONSTRAINT}]
    pq.write_table(table, tmp_path / "a.parquet")
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([row.keys(), row.values()])
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    for name in ("a.parquet", "a.csv", "a.jsonl"):
        assert params(tmp_path / name) == [{"constraint": CONSTRAINT}]


ODD_COLUMNS: dict[str, tuple[Any, str]] = {
    "no JSON": (pa.array(["{'regex': 'a'}"]), "constraint: takes JSON: Expecting property name"),
    "text in text": (pa.array([json.dumps(json.dumps(CONSTRAINT))]), "constraint: takes an object with regex"),
    "bytes": (pa.array([b"\xff{}"]), "constraint: takes an object with regex"),
    "list": (pa.array([[{"regex": "a"}]]), "takes an object with regex"),
    "number": (pa.array([5]), "constraint=5: takes an object with regex"),
    "map": (pa.array([[("pattern", "a")]], pa.map_(pa.string(), pa.string())), "'pattern': did you mean regex"),
    "struct": (pa.array([{"regex": "(", "grammar": "a"}]), "takes one of regex, json_schema"),
    "empty": (pa.array([""]), "constraint: takes an object with regex"),
}  # fmt: skip


@pytest.mark.parametrize("column", ODD_COLUMNS)
def test_a_constraint_of_an_odd_type_is_its_rows_dead_letter(tmp_path: Path, column: str) -> None:
    values, said = ODD_COLUMNS[column]
    pq.write_table(pa.table({"prompt": ["p"], "constraint": values}), tmp_path / "a.parquet")
    (letter,) = read(tmp_path / "a.parquet")
    assert isinstance(letter, DeadLetter)
    assert letter.error == "InvalidRequest"
    assert said in letter.reason


def test_a_map_and_a_null_are_constraints_too(tmp_path: Path) -> None:
    values = pa.array([[("regex", "a")], None], pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"prompt": ["p", "q"], "constraint": values}), tmp_path / "a.parquet")
    assert params(tmp_path / "a.parquet") == [{"constraint": {"regex": "a"}}, {}]


def test_without_row_params_a_constraint_is_a_column_as_it_stands(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["p"], "constraint": [{"a": None, "b": "c"}]}), tmp_path / "a.parquet")
    (prompt,) = read(tmp_path / "a.parquet", row_params=False)
    assert isinstance(prompt, Prompt)
    assert prompt.columns == {"constraint": {"a": None, "b": "c"}}


def test_parquet_row_groups_number_their_rows_through_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": [f"p{n}" for n in range(10)]}), tmp_path / "a.parquet", row_group_size=3)
    assert len(list(split_file(match_files([str(tmp_path / "a.parquet")])[0]))) == 4
    assert [row.id.rsplit("#", 1)[1] for row in read(tmp_path / "a.parquet")] == [str(n) for n in range(1, 11)]


def test_a_damaged_file_is_one_dead_letter(tmp_path: Path) -> None:
    compressed = {name: compress(CONTENTS["jsonl"] * 1000) for name, compress in COMPRESSIONS.items() if name}
    for name, data in compressed.items():
        rows = read_bytes(tmp_path, f"a.jsonl{name}", data[:-6])
        assert texts(rows)[-1] == "UnreadableFile", name
        assert len(reasons(rows)) == 1
    assert texts(read_bytes(tmp_path, "a.parquet", b"PAR1 not")) == ["UnreadableFile"]
    assert texts(read_bytes(tmp_path, "a.jsonl.gz", b"not gzip")) == ["UnreadableFile"]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    for extension in CONTENTS:
        assert read_bytes(tmp_path, f"a.{extension}", b"") == []
