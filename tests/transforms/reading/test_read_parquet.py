"""Parquet files with values that Python, or JSON, does not have, and with damage."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import tracemalloc
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.transforms.elements.completions import DeadLetter, Prompt
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.reading import parquet_pages, read_parquet
from millrace.transforms.reading.arrow_plain import Unconvertible, plain_rows
from millrace.transforms.reading.count import count_rows
from millrace.transforms.reading.file_ranges import FileRange
from tests.transforms.reading.rows_read import one_by_one, read, reasons, texts

YEAR_10000 = 253_402_300_800
"""Its first second, from 1970."""


def column(folder: Path, values: pa.Array) -> list[Any]:
    """A column as it goes through to the output."""
    pq.write_table(pa.table({"prompt": ["p"] * len(values), "c": values}), folder / "a.parquet")
    rows = read(folder / "a.parquet")
    assert all(isinstance(row, Prompt) for row in rows), reasons(rows)
    return [row.columns["c"] for row in rows if isinstance(row, Prompt)]


BEYOND: dict[str, tuple[pa.Array, list[Any]]] = {
    "timestamp": (
        pa.array([YEAR_10000 - 1, YEAR_10000, None], pa.timestamp("s")),
        ["9999-12-31T23:59:59", "10000-01-01T00:00:00.000", None],
    ),
    "of a zone": (
        pa.array([(YEAR_10000 - 1) * 10**6, 0], pa.timestamp("us", "Europe/Berlin")),
        ["9999-12-31T23:59:59.000000Z", "1970-01-01T01:00:00+01:00"],
    ),
    "of an unknown zone": (
        pa.array([5 * 10**6, None], pa.timestamp("us", "Mars/Phobos")),
        ["1970-01-01T00:00:05.000000Z", None],
    ),
    "of no zone": (pa.array([5], pa.timestamp("us", "+25:99")), ["1970-01-01T00:00:00.000005Z"]),
    "nanoseconds": (pa.array([1], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001"]),
    "date": (pa.array([2_932_897, -(10**6), 0], pa.date32()), ["10000-01-01", "-0768-02-04", "1970-01-01"]),
    "no date": (pa.array([2**31 - 1], pa.date32()), ["<value out of range: 2147483647>"]),
    "duration": (
        pa.array([10**18, -(10**18) - 1, 5], pa.duration("ms")),
        ["P11574074074DT6400S", "-P11574074074DT6400.001S", "PT0.005S"],
    ),
    "in a dictionary": (
        pa.array([YEAR_10000], pa.timestamp("s")).dictionary_encode(),
        ["10000-01-01T00:00:00.000"],
    ),
    "in lists": (
        pa.StructArray.from_arrays(
            [pa.ListArray.from_arrays([0, 2], pa.array([YEAR_10000, None], pa.timestamp("s")))], ["a"]
        ),
        [{"a": ["10000-01-01T00:00:00.000", None]}],
    ),
    "in a map": (
        pa.array([[("k", YEAR_10000)]], pa.map_(pa.string(), pa.int64())).cast(pa.map_(pa.string(), pa.timestamp("s"))),
        [{"k": "10000-01-01T00:00:00.000"}],
    ),
}


@pytest.mark.parametrize("kind", BEYOND)
def test_a_value_that_python_does_not_have_is_text_that_says_the_same(tmp_path: Path, kind: str) -> None:
    values, texts_of = BEYOND[kind]
    assert column(tmp_path, values) == texts_of


ID = uuid.UUID("4dea0518-6a2c-4429-8166-eb10b95e9b14")
KINDS: dict[str, tuple[pa.Array, list[Any]]] = {
    "large list": (pa.array([[1, 2], None], pa.large_list(pa.int32())), [[1, 2], None]),
    "list view": (pa.array([[1, 2], None], pa.list_view(pa.int32())), [[1, 2], None]),
    "string view": (pa.array(["a", None], pa.string_view()), ["a", None]),
    "fixed size": (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), [[1, 2]]),
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([ID.bytes, None], pa.binary(16))), [str(ID), None]),
    "json": (pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}'])), ['{"a":1}']),
    "map of bytes": (pa.array([[(b"\xff", 1)]], pa.map_(pa.binary(), pa.int32())), [{"/w==": 1}]),
    "map of structs": (
        pa.array([[({"a": 1}, 2)]], pa.map_(pa.struct([("a", pa.int32())]), pa.int32())),
        [[{"key": {"a": 1}, "value": 2}]],
    ),
    "half": (pa.array([1.5, float("nan"), float("inf")], pa.float16()), [1.5, None, None]),
    "decimals": (pa.array(["1.50"]).cast(pa.decimal256(70, 2)), ["1.50"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_column_goes_through(tmp_path: Path, kind: str) -> None:
    values, plain = KINDS[kind]
    assert column(tmp_path, values) == plain


def test_kinds_that_parquet_itself_does_not_have_are_plain_too() -> None:
    """Other writers, and later versions of Arrow, may have them."""
    union = pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()),
        pa.array([0, 0], pa.int32()),
        [pa.array([YEAR_10000], pa.timestamp("s")), pa.array(["x"])],
    )
    interval = pa.array([(1, 2, 3), None], pa.month_day_nano_interval())
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([YEAR_10000], pa.timestamp("s")))
    found = list(plain_rows(pa.record_batch({"union": union, "interval": interval, "runs": runs})))
    assert [row["union"] for row in found] == ["10000-01-01T00:00:00", "x"]
    assert found[0]["interval"] is not None
    assert found[1]["interval"] is None
    assert [row["runs"] for row in found] == ["10000-01-01T00:00:00"] * 2


def test_a_value_that_nothing_can_hold_is_its_rows_dead_letter(tmp_path: Path) -> None:
    offsets = pa.py_buffer(b"\0\0\0\0\2\0\0\0\3\0\0\0")
    odd = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfea")])
    pq.write_table(pa.table({"id": ["x", "y"], "prompt": ["p", "q"], "c": odd}), tmp_path / "a.parquet")
    letter, prompt = read(tmp_path / "a.parquet")
    assert isinstance(prompt, Prompt)
    assert prompt.columns == {"c": "a"}
    assert isinstance(letter, DeadLetter)
    assert (letter.id, letter.error) == ("x", "UnreadableRow")
    assert letter.reason == "`c`: string: not UTF-8"
    assert letter.row == {"id": "x", "prompt": "p", "c": None}


def test_two_fields_of_one_name_in_a_struct_are_their_rows_dead_letter() -> None:
    struct = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    (row,) = plain_rows(pa.record_batch({"c": struct}))
    assert isinstance(row["c"], Unconvertible)
    assert str(row["c"]).endswith("two fields have one name")


def test_two_columns_of_one_name_refuse_the_file(tmp_path: Path) -> None:
    table = pa.table([pa.array(["p"]), pa.array([1]), pa.array([2])], ["prompt", "x", "x"])
    pq.write_table(table, tmp_path / "a.parquet")
    assert texts(rows := read(tmp_path / "a.parquet")) == ["UnreadableFile"]
    assert reasons(rows) == ["two columns are called `x`, so no row can be read: give each a name of its own"]


def test_a_null_in_a_list_of_fixed_size_is_said_to_be_that(tmp_path: Path) -> None:
    values = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))
    pq.write_table(pa.table({"prompt": ["p"] * 3, "c": values}), tmp_path / "a.parquet")
    (reason,) = reasons(read(tmp_path / "a.parquet"))
    assert "a null in a list of fixed size (`c`) is not supported" in reason
    assert "rows 1 to 3 are missing" in reason


def test_a_damaged_row_group_costs_its_own_rows_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": [f"p{n}" for n in range(10)]}), path, row_group_size=2, compression="none")
    begin = pq.ParquetFile(path).metadata.row_group(3).column(0)
    data = bytearray(path.read_bytes())
    data[begin.dictionary_page_offset : begin.dictionary_page_offset + 8] = b"\xff" * 8
    path.write_bytes(data)
    rows = read(path)
    assert texts(rows) == [*(f"p{n}" for n in range(6)), "UnreadableFile", "p8", "p9"]
    (reason,) = reasons(rows)
    assert reason.startswith("row group 4 of 5: it is damaged (")
    assert reason.endswith("; rows 7 to 8 are missing, the rows of other row groups are read")
    assert reason.isprintable()


def test_a_damaged_footer_is_one_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": ["p"]}), path)
    data = bytearray(path.read_bytes())
    data[-40:-8] = b"\xff" * 32
    length = int.from_bytes(data[-8:-4], "little")
    data[-8 - length : -8 - length + 8] = b"\xff" * 8
    path.write_bytes(data)
    assert texts(rows := read(path)) == ["UnreadableFile"]
    assert reasons(rows)[0].isprintable()


def test_a_column_whose_name_is_no_utf_8_is_one_dead_letter_and_counts_no_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": ["p"], "zzzz": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"zzzz", b"\xff\xff\xff\xff"))
    assert texts(rows := read(path)) == ["UnreadableFile"]
    assert reasons(rows)[0].startswith("the file is damaged (UnicodeDecodeError")
    assert count_rows([str(path)]) == (0, False)


def test_rows_of_megabytes_are_in_memory_a_few_at_a_time(tmp_path: Path) -> None:
    rows, size = 64, 2**22
    values = pa.array([bytes(size)] * rows)
    pq.write_table(pa.table({"prompt": ["p"] * rows, "c": values}), tmp_path / "a.parquet")
    del values
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        read_some = one_by_one(tmp_path / "a.parquet", limit=2 * size)
        assert isinstance(next(read_some), Prompt)
        assert pa.total_allocated_bytes() - before < 32 * size
        assert sum(isinstance(row, Prompt) for row in read_some) == rows - 1
        assert tracemalloc.get_traced_memory()[1] < 16 * size
    finally:
        tracemalloc.stop()


LIMIT = 10_000
"""Bytes of a row, in what follows: 32 times as many may be decoded at a time."""


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pages are taken beside those that the limit takes."""
    monkeypatch.setattr(read_parquet, "_PAGES_BYTES", 0)
    monkeypatch.setattr(parquet_pages, "USUAL_PAGE", 0)


def wide(path: Path, sizes: list[int], **options: Any) -> None:
    """A file with a prompt a row, and a column whose values differ and have these bytes."""
    values = pa.array([os.urandom(size) for size in sizes])
    pq.write_table(pa.table({"prompt": [f"p{n}" for n in range(len(sizes))], "c": values}), path, **options)


@contextlib.contextmanager
def counted_memory() -> Iterator[pa.MemoryPool]:
    """Arrow's memory, whose peak counts from here on."""
    before, counted = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(counted)
    try:
        yield counted
    finally:
        pa.set_memory_pool(before)


WRITTEN: dict[str, dict[str, Any]] = {
    "default": {},
    "plain": {"use_dictionary": False},
    "stored": {"compression": "none"},
    "second version": {"data_page_version": "2.0", "compression": "zstd", "write_page_checksum": True},
    "indexed": {"write_page_index": True, "compression": "gzip"},
}


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("written", WRITTEN)
def test_a_row_group_of_a_page_beyond_the_bound_is_refused_before_it_is_decoded(tmp_path: Path, written: str) -> None:
    wide(tmp_path / "a.parquet", [5] * 100 + [5000] * 100 + [5] * 100, row_group_size=100, **WRITTEN[written])
    with counted_memory() as pool:
        rows = read(tmp_path / "a.parquet", limit=LIMIT)
    assert texts(rows) == [*(f"p{n}" for n in range(100)), "UnreadableFile", *(f"p{n}" for n in range(200, 300))]
    (reason,) = reasons(rows)
    assert reason.startswith("row group 2 of 3: the largest pages of its columns count 50")
    assert re.search(r" towards the limit \(column `c`: 50\d,\d{3} bytes\), which is 320,000 ", reason)
    assert "(32 x max_row_bytes=10000, at least 0 MiB): write the file with smaller pages (pyarrow: " in reason
    assert "pyarrow: write_batch_size=1; DuckDB" in reason
    assert reason.endswith("; rows 101 to 200 are missing, the rows of other row groups are read")
    assert pool.max_memory() < 500_000


@pytest.mark.parametrize("written", WRITTEN)
def test_the_same_rows_in_smaller_pages_are_read_in_pieces(tmp_path: Path, written: str) -> None:
    size = 2**20
    wide(tmp_path / "a.parquet", [size] * 40, write_batch_size=1, **WRITTEN[written] | {"use_dictionary": False})
    with counted_memory() as pool:
        rows = one_by_one(tmp_path / "a.parquet", limit=2 * size)
        assert sum(isinstance(row, Prompt) for row in rows) == 40
        assert pool.max_memory() < 12 * size


@pytest.mark.usefixtures("small_pages")
def test_a_row_group_larger_than_the_bound_whose_pages_are_small_is_read(tmp_path: Path) -> None:
    wide(tmp_path / "a.parquet", [100] * 20_000, data_page_size=1000, use_dictionary=False)
    assert len(texts(read(tmp_path / "a.parquet", limit=LIMIT))) == 20_000
    wide(tmp_path / "a.parquet", [100] * 20_000)
    assert texts(read(tmp_path / "a.parquet", limit=LIMIT)) == ["UnreadableFile"]
    assert texts(read(tmp_path / "a.parquet", limit=20 * LIMIT))[-1] == "p19999"


def test_a_low_limit_of_rows_refuses_no_file_of_usual_pages(tmp_path: Path) -> None:
    wide(tmp_path / "a.parquet", [100] * 20_000)
    assert texts(read(tmp_path / "a.parquet", limit=LIMIT))[-1] == "p19999"


def test_pages_that_end_by_their_size_count_a_quarter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB's pages have up to 100 MB, in each column."""
    monkeypatch.setattr(read_parquet, "_PAGES_BYTES", 0)
    wide(tmp_path / "a.parquet", [5000] * 100)
    monkeypatch.setattr(parquet_pages, "USUAL_PAGE", 600_000)
    assert texts(read(tmp_path / "a.parquet", limit=LIMIT))[-1] == "p99"
    monkeypatch.setattr(parquet_pages, "USUAL_PAGE", 400_000)
    assert texts(read(tmp_path / "a.parquet", limit=LIMIT)) == ["UnreadableFile"]


@pytest.mark.usefixtures("small_pages")
def test_a_page_header_that_is_none_is_left_to_who_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for noise in (b"\xff" * 64, bytes(64), b"\x18" + b"\xff" * 9 + b"\x7f", b"\x1c" * 64, b"\x15" + b"\xff" * 8):
        wide(path, [5000] * 100, compression="none")
        begin = pq.ParquetFile(path).metadata.row_group(0).column(1).dictionary_page_offset
        data = bytearray(path.read_bytes())
        data[begin : begin + len(noise)] = noise
        path.write_bytes(data)
        assert texts(rows := read(path, limit=LIMIT)) == ["UnreadableFile"]
        assert "rows 1 to 100 are missing" in reasons(rows)[0]


def encrypt(path: Path, **how: Any) -> None:
    """A file of 3 rows whose column `c` is encrypted."""
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):  # type: ignore[name-defined]
        def wrap_key(self, key: bytes, _name: str) -> bytes:
            return base64.b64encode(key)

    table = pa.table({"prompt": ["a", "b", "c"], "c": ["d", "e", "f"]})
    settings = encryption.EncryptionConfiguration(footer_key="k", column_keys={"c": ["c"]}, **how)
    keys = encryption.CryptoFactory(lambda _connection: Keys())
    properties = keys.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def test_a_file_with_an_encrypted_column_is_a_dead_letter_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    """Pyarrow aborts where one asks for the metadata of such a column."""
    encrypt(tmp_path / "a.parquet", plaintext_footer=True)
    rows = read(tmp_path / "a.parquet")
    assert texts(rows) == ["UnreadableFile"]
    assert "Cannot decrypt ColumnMetadata" in reasons(rows)[0]
    encrypt(tmp_path / "a.parquet", plaintext_footer=False)
    assert texts(read(tmp_path / "a.parquet")) == ["UnreadableFile"]


@pytest.mark.usefixtures("small_pages")
def test_pages_of_nested_columns_count_and_row_groups_without_rows_do_not(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = pa.array([{"l": [{"v": os.urandom(2500).hex()}]} for _ in range(100)])
    table = pa.table({"prompt": [f"p{n}" for n in range(100)], "s": values})
    with pq.ParquetWriter(path, table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 3), table.slice(0, 0), table):
            writer.write_table(part)
    rows = read(path, limit=LIMIT)
    assert texts(rows) == ["p0", "p1", "p2", "UnreadableFile"]
    assert "row group 4 of 4" in reasons(rows)[0]
    assert "column `s.l.list.element.v`" in reasons(rows)[0]


class OfAStore(io.BytesIO):
    """What an object store's file is read from; counts the bytes."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def test_a_row_group_in_a_bucket_is_fetched_once_unless_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide(tmp_path / "a.parquet", [100_000] * 100, use_dictionary=False, write_batch_size=1, data_page_size=1)
    part = FileRange("gs://bucket/a.parquet", "parquet")

    def fetched() -> int:
        stream = OfAStore((tmp_path / "a.parquet").read_bytes())
        rows = read_parquet.read_parquet(stream, part, RowShape(), 10**6)
        assert sum(isinstance(row, Prompt) for row in rows) == 100
        return stream.taken

    size = (tmp_path / "a.parquet").stat().st_size
    footer = 2**16
    assert fetched() < size + 2 * footer
    monkeypatch.setattr(read_parquet, "_PAGES_BYTES", 0)
    monkeypatch.setattr(read_parquet, "_PAGES", 1)
    assert fetched() < size + 3 * footer, "of each page only the header is read beforehand"
