import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.pages.facts import UNREADABLE, facts_of
from millrace.pipelines.pages.row_files import row_file
from millrace.pipelines.pages.table import Table, digest_of
from millrace.transforms.writing.output_rows import write_rows


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"r{number}",
            "text": f'answer "{number}",\nsecond line' + "x" * (number % 7),
            "finish_reason": "length" if number % 3 else "stop",
            "usage": {"prompt_tokens": number, "cached_tokens": 1, "completion_tokens": 2},
            "timings": {"queued": 0.0, "first_token": 0.25, "finished": 0.5, "latency": 0.5},
            "columns": {"n": number},
        }
        for number in range(count)
    ]


def written(folder: Path, extension: str, count: int) -> Path:
    path = folder / f"out-00000-of-00001.{extension}"
    with path.open("wb") as stream:
        write_rows((json.dumps(row).encode() + b"\n" for row in rows(count)), stream, str(path))
    return path


@pytest.mark.parametrize("extension", ["jsonl", "parquet", "csv"])
def test_rows_are_read_from_any_number_on(tmp_path: Path, extension: str) -> None:
    path = written(tmp_path, extension, 1000)
    file = row_file(str(path))
    for start, count in ((999, 5), (0, 3), (255, 2), (256, 300), (700, 1), (1000, 4), (5000, 1)):
        found = row_file(str(path)).read(start, count)
        assert [row["id"] for row in found] == [row["id"] for row in rows(1000)[start : start + count]]
        assert file.read(start, count) == found
    assert file.count() == 1000
    row = file.read(314, 1)[0]
    assert (row["text"], row["usage"]["prompt_tokens"]) == (rows(1000)[314]["text"], 314)


@pytest.mark.parametrize("extension", ["jsonl", "parquet", "csv"])
def test_a_pass_tells_what_plots_and_filters_need(tmp_path: Path, extension: str) -> None:
    found = digest_of(Table([str(written(tmp_path, extension, 600))] * 2), sample=8, unsure=3)
    assert (found.rows, found.failed, found.ended) == (1200, 0, {"stop": 400, "length": 800})
    assert found.prompt_tokens.total == 2 * sum(range(600))
    assert (found.generated_tokens.total, found.cached_tokens) == (2400, 1200)
    assert (found.latency.most, found.first_token.least) == (500, 250)
    assert len(found.chosen()) == 8


def test_rows_of_several_files_are_one_table(tmp_path: Path) -> None:
    paths = []
    for name, count in (("a", 3), ("b", 0), ("c", 5)):
        (tmp_path / name).mkdir()
        paths.append(str(written(tmp_path / name, "jsonl", count)))
    table = Table(paths)
    assert table.count() == 8
    assert [row["id"] for row in table.read(1, 4)] == ["r1", "r2", "r0", "r1"]
    assert [row["id"] for row in table.at([0, 2, 3, 7, 8])] == ["r0", "r2", "r0", "r4"]


@pytest.mark.parametrize("extension", ["jsonl", "parquet", "csv"])
def test_single_rows_are_picked(tmp_path: Path, extension: str) -> None:
    file = row_file(str(written(tmp_path, extension, 1000)))
    numbers = [0, 1, 127, 128, 500, 999, 1000]
    assert [row["id"] for row in file.at(numbers)] == [f"r{number}" for number in numbers[:-1]]


def test_a_line_that_is_no_row_is_shown_as_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": "a", "text": "x", "finish_reason": "stop"}\n{"id": "torn\n\xff\xfe\n"\\ud800"\n[]\n')
    found = row_file(str(path)).read(0, 9)
    assert [UNREADABLE in row for row in found] == [False, True, True, True, True]
    assert [facts_of(row).failed for row in row_file(str(path)).scan()] == [False, True, True, True, True]


def test_row_groups_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [f"r{n}" for n in range(100)], "text": ["t"] * 100}), path, row_group_size=10)
    data = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(0).column(0)
    path.write_bytes(data[: group.data_page_offset] + b"\0" * 20 + data[group.data_page_offset + 20 :])
    assert [row["id"] for row in row_file(str(path)).read(95, 9)] == [f"r{n}" for n in range(95, 100)]


@pytest.mark.parametrize("name", ["a.parquet", "a.txt"])
def test_a_file_that_is_no_output_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1 and no more")
    with pytest.raises(ConfigError, match=name):
        row_file(str(tmp_path / name))
