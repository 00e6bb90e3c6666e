import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.transforms.reading.count import count_rows


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.jsonl", b'"a"\n"b"\n', 2),
        ("a.jsonl", b'\n"a"\r\n\r\n\n"b"', 2),
        ("a.txt", b"", 0),
        ("a.csv", b'prompt\n"a\nb"\nc\n', 2),
        ("a.csv", b"prompt\n", 0),
        ("a.jsonl.gz", gzip.compress(b'"a"\n"b"\n', mtime=0), 2),
    ],
)
def test_rows_are_counted(tmp_path: Path, name: str, content: bytes, rows: int) -> None:
    (tmp_path / name).write_bytes(content)
    assert count_rows([str(tmp_path / name)]) == (rows, True)


def test_parquet_says_how_many_it_has(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a"] * 7}), tmp_path / "a.parquet")
    assert str(count_rows([f"{tmp_path}/*"])) == "7"


def test_beyond_the_budget_the_count_is_an_estimate(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_bytes(b"123456789\n" * 300_000)
    counted = count_rows([f"{tmp_path}/*"], budget=2 * 2**20)
    assert not counted.exact
    assert counted.rows == pytest.approx(900_000, rel=0.01)
    assert str(counted).startswith("≈ ")


def test_a_limit_is_the_most_that_is_counted_and_nothing_is_read_beyond_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"1\n" * 7)
    assert count_rows([f"{tmp_path}/*"], limit=9) == (7, True)
    (tmp_path / "b.txt.gz").write_bytes(b"damaged")
    assert count_rows([f"{tmp_path}/*"], limit=7) == (7, True)
    assert count_rows([f"{tmp_path}/*"], limit=8) == (7, False)


def test_what_is_beyond_the_budget_is_estimated_by_the_files_as_they_are_stored(tmp_path: Path) -> None:
    lines = [f"{number * 7919 % 1_000_003:09}" for number in range(200_000)]
    packed = gzip.compress("\n".join(lines).encode(), mtime=0)
    for name in "abc":
        (tmp_path / f"{name}.txt.gz").write_bytes(packed)
    counted = count_rows([f"{tmp_path}/*"], budget=2**20)
    assert not counted.exact
    assert counted.rows == pytest.approx(600_000, rel=0.1)


def test_nothing_of_a_file_is_read_once_the_budget_is_spent(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"1\n" * 2**20)
    (tmp_path / "b.txt.gz").write_bytes(b"damaged" * 2**18)
    assert count_rows([f"{tmp_path}/*"], budget=2**20).rows == pytest.approx(2**20 * 15 / 8, rel=0.01)


def test_a_compressed_file_that_is_longer_than_the_budget_makes_the_count_inexact(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"123456789\n" * 300_000, mtime=0))
    assert not count_rows([f"{tmp_path}/*"], budget=2**20).exact
    assert count_rows([f"{tmp_path}/*"], budget=2**23) == (300_000, True)


def test_a_damaged_file_makes_the_count_inexact(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(b"no")
    (tmp_path / "b.txt").write_bytes(b"a\n")
    assert count_rows([f"{tmp_path}/*"]) == (1, False)
