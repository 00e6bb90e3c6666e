import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.reading.positions import find_row
from millrace.transforms.reading.read_prompts import ReadPrompts
from millrace.transforms.reading.row_places import Position
from tests.transforms.running import check, pipeline


def write(folder: Path) -> None:
    (folder / "a.jsonl").write_text('"one"\n\n{"prompt": 3}\n{"prompt": "two"}\n')
    (folder / "b@1.jsonl.gz").write_bytes(gzip.compress(b'"one"\n"two"\n'))
    (folder / "c.txt").write_text("one\r\ntwo\n")
    (folder / "d#2.csv").write_text('prompt\n"one\nline"\ntwo\n')
    table = pa.table({"prompt": [f"row {number}" for number in range(10)]})
    pq.write_table(table, folder / "e.parquet", row_group_size=4)


def test_every_row_is_found_by_the_position_that_reading_gave_it(tmp_path: Path) -> None:
    write(tmp_path)
    with pipeline() as p:
        prompts, letters = p | ReadPrompts(f"{tmp_path}/*").with_exception_handling()
        check(prompts, lambda rows: len(rows) == 18 and all(found(row.source) == row for row in rows), "prompts")
        check(letters, lambda rows: len(rows) == 1 and all(found(row.source) == row for row in rows), "letters")


def found(position: str) -> object:
    return find_row(Position.parse(position), RowShape())


def test_rows_of_tables_are_numbered_from_1(tmp_path: Path) -> None:
    write(tmp_path)
    assert getattr(found(f"{tmp_path}/d#2.csv#1"), "text", None) == "one\nline"
    assert getattr(found(f"{tmp_path}/e.parquet#10"), "text", None) == "row 9"


@pytest.mark.parametrize(
    "position", ["a.jsonl@3", "a.jsonl@999", "d#2.csv#0", "d#2.csv#3", "e.parquet#11", "x.jsonl@0"]
)
def test_where_no_row_begins_none_is_found(tmp_path: Path, position: str) -> None:
    write(tmp_path)
    with pytest.raises(ConfigError, match=position.split("@")[0].split("#")[0]):
        found(f"{tmp_path}/{position}")


@pytest.mark.parametrize("position", ["a.jsonl", "a.jsonl:3", "@3", "a.jsonl#3", "e.parquet@3", "a.jsonl@x"])
def test_a_position_takes_its_formats_mark_and_a_number(position: str) -> None:
    with pytest.raises(ConfigError, match=r": takes <path>"):
        found(position)
