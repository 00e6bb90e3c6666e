"""`millrace extract` and `millrace classify` on streams: rows of their types, from each source and to each sink."""

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import json_lines
from tests.pipelines.streams.jobs import interrupted, nothing_is_left, stream
from tests.servers.kafka import Kafka, until
from tests.servers.pubsub import PubSub

pytestmark = [pytest.mark.runners, pytest.mark.slow]

MODULE = """
import dataclasses, datetime
from decimal import Decimal
from typing import Annotated, Literal
import pydantic
from millrace import Span

@dataclasses.dataclass
class Order:
    number: Annotated[str, Span()]
    day: datetime.date
    total: Annotated[Decimal, pydantic.Field(decimal_places=2, max_digits=8)]
    currency: Literal["EUR", "USD"]
    city: Annotated[str, pydantic.Field(max_length=8)] | None
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the jobs start: the class is not installed anywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "streamed_orders.py").write_text(MODULE)
    return tmp_path


def text_of(number: int) -> str:
    return f"Order {number}: two lamps to Oslo, 12.50 EUR"


def checked(row: dict[str, Any], text: str) -> str:
    """The id of a row of JSON that is an Order of its document."""
    datetime.date.fromisoformat(row["day"])
    assert abs(Decimal(str(row["total"]))) < 10**6
    assert row["currency"] in ("EUR", "USD")
    assert row["city"] is None or isinstance(row["city"], str)
    where = row["spans"]["number"]
    assert text[where["start"] : where["end"]] == row["number"]
    return str(row["id"])


def test_a_topics_documents_become_rows_of_a_class_in_another(broker: Kafka, runtime: Path) -> None:
    documents, answers = broker.topic(partitions=2), broker.topic()
    sent = [json.dumps({"id": f"d{n}", "text": text_of(n), "shop": n}).encode() for n in range(20)]
    broker.send(documents, [*sent, b"not JSON", b'{"id": "none", "body": "x"}', b'{"id": "empty", "text": ""}'])
    addresses = f"kafka:{broker.address}/{documents}", f"kafka:{broker.address}/{answers}"
    with stream(*addresses, "--schema=streamed_orders:Order", command="extract") as job:
        found = [json.loads(record.value()) for record in broker.received(answers, 23)]
        until(lambda: broker.committed(documents) == 23)
        interrupted(job)
    rows = [row for row in found if "error" not in row]
    assert {checked(row, text_of(row["columns"]["shop"])) for row in rows} == {f"d{n}" for n in range(20)}
    assert len(rows) == 20
    errors = {row["id"].split("/")[0]: row["error"] for row in found if "error" in row}
    assert errors == {f"kafka:{documents}": "UnreadableRow", "none": "InvalidRequest", "empty": "InvalidRequest"}
    nothing_is_left(runtime)


def test_a_subscriptions_texts_get_labels(server: PubSub, runtime: Path) -> None:
    documents, answers = server.topic(), server.topic()
    source, sink = server.subscription(documents), server.subscription(answers)
    server.send(documents, [(text_of(n).encode(), {"id": f"d{n}"}) for n in range(10)])
    flags = ["--labels=order,complaint,question", "--input_format=text"]
    with stream(f"pubsub:{source}", f"pubsub:{answers}", *flags, command="classify") as job:
        found = [json.loads(message.data) for message in server.received(sink, 10)]
        until(lambda: server.counts(documents)["acknowledged"] == 10)
        interrupted(job)
    assert {row["id"] for row in found} == {f"d{n}" for n in range(10)}
    for row in found:
        assert list(row["probabilities"]) == ["order", "complaint", "question"]
        assert sum(row["probabilities"].values()) == pytest.approx(1)
        assert row["labels"] == [row["label"]]
    nothing_is_left(runtime)


def test_text_files_that_come_are_read_whole_into_parquet_of_the_types(folder: Path, runtime: Path) -> None:
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"{text_of(number)}\n\nthank you\n")
    (folder / "bad.txt").write_bytes(b"\xff\xfe")
    flags = ["--schema=streamed_orders:Order", "--window=1"]
    with stream(f"watch:{folder}/*.txt", f"{folder}/out/rows.parquet", *flags, command="extract") as job:
        until(lambda: len(rows_of(folder)) == 3 and bool(letters_of(folder)))
        (folder / "3.txt").write_text(f"{text_of(3)}\n")
        until(lambda: len(rows_of(folder)) == 4)
        interrupted(job)
    for row in rows_of(folder):
        text = Path(row["id"]).read_text()
        assert isinstance(row["day"], datetime.date)
        assert isinstance(row["total"], Decimal)
        where = dict(row["spans"])["number"]
        assert text[where["start"] : where["end"]] == row["number"]
    assert [letter["id"] for letter in letters_of(folder)] == [f"{folder}/bad.txt"]
    schema = pq.read_schema(next(folder.glob("out/rows-*.parquet")))
    assert (schema.field("day").type, schema.field("total").type) == (pa.date32(), pa.decimal128(8, 2))
    nothing_is_left(runtime)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for path in folder.glob("out/rows-*.parquet") for row in pq.read_table(path).to_pylist()]


def letters_of(folder: Path) -> list[dict[str, Any]]:
    return json_lines.rows_of(folder, "out/rows.dead_letters-*.jsonl")
