"""Prompts on gs:// while requests fail: every row as it is stored, or one sentence that names the object."""

import bz2
import csv
import gzip
import io
import json
import logging
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.model_manager.wire.errors import StorageError
from millrace.transforms.elements.completions import DeadLetter, Prompt
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.files import object_reads
from millrace.transforms.reading.count import count_rows
from millrace.transforms.reading.file_ranges import match_files, split_file
from millrace.transforms.reading.positions import find_row
from millrace.transforms.reading.read_prompts import ReadPrompts
from millrace.transforms.reading.read_rows import read_range
from millrace.transforms.reading.row_places import Position
from tests.cloud_storage.bucket import Bucket
from tests.cloud_storage.faults import ALL_LASTING, CLOUD_STORAGE, PASSING
from tests.servers.fake_gcs import downloads, listings, looks
from tests.servers.faulty_http import Altered, Fault, Reset, Status, Truncated
from tests.transforms.running import check, pipeline

pytestmark = CLOUD_STORAGE

ROWS = [{"id": f"r{number}", "prompt": f"{number} {'words ' * (number % 200)}".strip()} for number in range(3000)]


def jsonl() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def table() -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["id", "prompt"])
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def parquet() -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), stream, row_group_size=1000, compression="none")
    return stream.getvalue()


STREAMED: list[Fault] = [Truncated(1000, "part"), Truncated(1000, "none"), Altered()]
CONTENTS = {
    "rows.jsonl": jsonl(),
    "rows.jsonl.gz": gzip.compress(jsonl(), mtime=0),
    "rows.jsonl.bz2": bz2.compress(jsonl()),
    "rows.csv": table(),
    "rows.parquet": parquet(),
}
ONCE = [
    *(("rows.jsonl", fault, 0) for fault in PASSING),
    *(("rows.parquet", fault, 1) for fault in PASSING),
    *((name, fault, 1) for name in ("rows.jsonl.gz", "rows.jsonl.bz2", "rows.csv") for fault in STREAMED),
]
"""Every fault, at the first reading of an object and at a later one. All formats share `object_reads`, so the others
have the faults that end a stream early or alter it.
"""


def read(pattern: str) -> list[tuple[str, str | None]]:
    """All rows, by whatever workers read them; a dead letter has no text."""
    shape = RowShape()
    found: list[Prompt | DeadLetter] = []
    for file in match_files([pattern]):
        for part in split_file(file):
            found += read_range(part, shape)
    return [(row.id, row.text if isinstance(row, Prompt) else None) for row in found]


EXPECTED = [(row["id"], row["prompt"]) for row in ROWS]


@pytest.mark.parametrize(("name", "fault", "after"), ONCE, ids=str)
def test_rows_are_as_stored_when_a_download_fails_once(bucket: Bucket, name: str, fault: Fault, after: int) -> None:
    path = bucket.put(name, CONTENTS[name])
    rule = bucket.server.inject(fault, downloads(name), after=after)
    assert read(path) == EXPECTED
    assert rule.happened == 1


@pytest.mark.parametrize(("name", "after"), [("rows.jsonl", 0), ("rows.parquet", 1)])
@ALL_LASTING
def test_an_object_that_cannot_be_read_is_named(bucket: Bucket, name: str, fault: Fault, after: int) -> None:
    path = bucket.put(name, CONTENTS[name])
    bucket.inject_for_good(fault, downloads(name), after)
    with pytest.raises(StorageError, match=re.escape(path)) as raised:
        read(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("fault", [Status(503), Truncated(0, "part"), Reset(10)])
def test_what_is_asked_about_objects_is_asked_again(bucket: Bucket, fault: Fault) -> None:
    path = bucket.put("folder/rows.jsonl", jsonl())
    rules = [bucket.server.inject(fault, kind) for kind in (listings, looks("rows.jsonl"))]
    assert read(path.replace("rows", "*")) == EXPECTED
    assert [rule.happened for rule in rules] == [1, 1]


@pytest.mark.parametrize("fault", [Status(503), Status(403), Truncated(20, "part")])
def test_a_bucket_that_cannot_be_listed_is_named(bucket: Bucket, fault: Fault) -> None:
    bucket.put("rows.jsonl", jsonl())
    bucket.inject_for_good(fault, listings)
    pattern = f"{bucket.address}/*.jsonl"
    with pytest.raises(StorageError, match=re.escape(f"{pattern}: cannot be listed")):
        read(pattern)


def test_a_range_that_arrives_altered_is_fetched_again(bucket: Bucket) -> None:
    path = bucket.put("rows.jsonl", jsonl())
    shape = RowShape()
    (file,) = match_files([path])
    parts = list(split_file(file))
    assert len(parts) > 2
    for index, part in enumerate(parts):
        bucket.server.inject(Altered(part.start % object_reads.BLOCK_BYTES + 50), downloads("rows.jsonl"))
        rows = [row for row in read_range(part, shape) if isinstance(row, Prompt)]
        assert all((row.id, row.text) in EXPECTED for row in rows), index
        bucket.server.heal()


def test_an_object_that_is_overwritten_between_two_ranges_is_not_mixed(bucket: Bucket) -> None:
    path = bucket.put("rows.jsonl", jsonl())
    (file,) = match_files([path])
    first, second, *_ = split_file(file)
    list(read_range(first, RowShape()))
    bucket.put("rows.jsonl", jsonl().replace(b"words", b"WORDS"))
    with pytest.raises(StorageError, match=re.escape(path) + ".*overwritten"):
        list(read_range(second, RowShape()))


def test_an_object_that_is_damaged_where_it_lies_is_a_dead_letter(bucket: Bucket) -> None:
    path = bucket.put("rows.jsonl.gz", gzip.compress(jsonl())[:-100])
    rows = read(path)
    assert rows[-1] == (path, None)
    assert rows[:-1] == EXPECTED[: len(rows) - 1]


def test_a_large_object_is_read_in_one_go_and_its_length_still_holds(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(object_reads, "_MAX_FINGERPRINTED", 1000)
    path = bucket.put("rows.jsonl", jsonl())
    bucket.server.inject(Truncated(1000, "none"), downloads("rows.jsonl"), times=3)
    with caplog.at_level(logging.WARNING):
        assert read(path) == EXPECTED
    assert "rows.jsonl is over 1 GiB" in caplog.text


def test_rows_are_counted_and_found_while_requests_fail(bucket: Bucket) -> None:
    path = bucket.put("rows.jsonl", jsonl())
    for fault in (Truncated(100, "none"), Status(503), Truncated(0, "part")):
        bucket.server.inject(fault, downloads("rows.jsonl"))
        assert count_rows([path]).rows == len(ROWS)
        bucket.server.inject(fault, downloads("rows.jsonl"))
        row = find_row(Position.parse(f"{path}@0"), RowShape())
        assert (row.id, row.source) == ("r0", f"{path}@0")


def test_a_pipeline_reads_every_row_once_through_all_of_it(bucket: Bucket) -> None:
    for name, content in CONTENTS.items():
        bucket.put(name, content)
    faults: list[Fault] = [Status(503), Reset(500), Truncated(500, "part"), Altered(), Truncated(0, "part")]
    for number, fault in enumerate(faults):
        bucket.server.inject(fault, downloads("rows."), after=3 * number)
    with pipeline("--project=p") as p:
        prompts, letters = p | ReadPrompts([f"{bucket.address}/rows.*"]).with_exception_handling()
        check(prompts, lambda found: sorted(row.id for row in found) == sorted([row["id"] for row in ROWS] * 5))
        check(letters, lambda found: not found, label="letters")
