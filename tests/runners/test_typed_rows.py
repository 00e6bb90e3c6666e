"""Extract and Classify on every runner: a row of the type or a dead letter for each document, and no type is lost.

RUNNER=prism, or the beginning of any other target's name, runs those alone.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import apache_beam as beam
import pyarrow.parquet as pq
import pydantic
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from millrace import Classify, Extract, Span
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from tests.job_commands import job_command
from tests.json_lines import rows_of
from tests.runners.targets import OTHER_PROCESSES, Servers, Target, only_on
from tests.runners.test_every_runner import Noted, its_id
from tests.runners.watching import nothing_is_left

pytestmark = [pytest.mark.runners, pytest.mark.timeout(1800)]

MODEL = ModelConfig(model="millrace-tiny", backend="fake")
SOON = ManagerConfig(linger=1, orphan_grace=1)
COUNT = 20


@dataclass
class Item:
    name: Annotated[str, Span()]
    price: Annotated[Decimal, pydantic.Field(max_digits=8, decimal_places=2)]


@dataclass
class Order:
    day: datetime.date
    at: datetime.datetime | None
    currency: Literal["EUR", "USD"]
    paid: bool
    weight: Annotated[float, pydantic.Field(ge=0, le=9)]
    items: Annotated[list[Item], pydantic.Field(min_length=1, max_length=2)]


def document(number: int) -> tuple[str, dict[str, Any]]:
    """A keyed document, or, every fifth, something that is none."""
    text = {"prompt": f"Order {number}: two lamps to Oslo, 12.50 EUR"} if number % 5 else {}
    return f"key{number % 3}", {"id": f"d{number}", **text}


def types_of(value: Any) -> Any:
    """Types of a row's values by field name, in lists and inner rows too."""
    if isinstance(value, list):
        return [types_of(value[0])]
    names = getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", None)
    return {name: types_of(getattr(value, name)) for name in names} if names else type(value).__name__


def noted(folder: Path) -> list[Any]:
    return [row[0] for row in rows_of(folder, "*.jsonl")]


class Typed(beam.DoFn):  # type: ignore[misc, unused-ignore]
    """(key, rows) → the key, the row's types and, where it says it, whose row it is."""

    def process(self, keyed: tuple[str, Any]) -> Iterator[Any]:
        for row in keyed[1]:
            yield keyed[0], types_of(row), getattr(row, "id", None)


EXTRACTED: dict[str, Any] = {
    "day": "date",
    "at": "datetime",
    "currency": "str",
    "paid": "bool",
    "weight": "float",
    "items": [{"name": "str", "price": "Decimal"}],
}
CLASSIFIED: dict[str, Any] = {
    **dict.fromkeys(["id", "label", "columns", "model", "revision"], "str"),
    "labels": ["str"],
    "probabilities": "dict",
}
KEYS = [(f"key{number % 3}", f"d{number}") for number in range(COUNT) if number % 5]
LETTERS = [(f"key{number % 3}", f"d{number}") for number in range(0, COUNT, 5)]


@only_on(OTHER_PROCESSES)
def test_rows_keep_their_types_through_beams_coder(
    target: Target, servers: Servers, runtime: Path, tmp_path: Path
) -> None:
    options = PipelineOptions(target.job_flags(servers))
    pipeline = beam.Pipeline(runner=target.runner(options), options=options)
    make: Any = beam.Map(document).with_output_types(tuple[str, dict[str, Any]])
    documents: Any = pipeline | beam.Create(list(range(COUNT))) | beam.Reshuffle() | make
    tasks: dict[str, Any] = {
        "extract": Extract(Order, MODEL, manager=SOON),
        "classify": Classify(["a", "b"], MODEL, manager=SOON),
    }
    for name, task in tasks.items():
        rows, letters = documents | name >> task.with_exception_handling()
        noting = rows | f"Grouped {name}" >> beam.GroupByKey() | f"Types of {name}" >> beam.ParDo(Typed())
        noting | f"Note {name}" >> beam.ParDo(Noted(tmp_path / name))
        ids = letters | f"Letters of {name}" >> beam.Map(its_id)
        ids | f"Note letters of {name}" >> beam.ParDo(Noted(tmp_path / f"{name} letters"))
    pipeline.run().wait_until_finish()
    extracted = noted(tmp_path / "extract")
    assert sorted(key for key, *_ in extracted) == sorted(key for key, _ in KEYS)
    for _, types, _ in extracted:
        assert types in (EXTRACTED, EXTRACTED | {"at": "NoneType"})
    classified = noted(tmp_path / "classify")
    assert sorted((key, identity) for key, _, identity in classified) == sorted(KEYS)
    assert all(types == CLASSIFIED for _, types, _ in classified)
    for name in tasks:
        assert sorted(map(tuple, noted(tmp_path / f"{name} letters"))) == sorted(LETTERS)
    nothing_is_left(runtime)


@only_on(OTHER_PROCESSES)
def test_millrace_extract_takes_a_class_that_no_worker_can_import(
    target: Target, servers: Servers, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"{document(1)[1]['prompt']}\n\nthank you\n")
    (tmp_path / "4.txt").touch()
    (tmp_path / "sent_orders.py").write_text(
        "import dataclasses, datetime\n@dataclasses.dataclass\nclass Order:\n    day: datetime.date\n"
    )
    command = job_command("extract", f"{tmp_path}/*.txt", f"{tmp_path}/out/rows.parquet")
    command += ["--schema=sent_orders:Order", "--backend=fake", "--linger=1", "--orphan_grace=1"]
    ended = subprocess.run(
        [*command, *target.job_flags(servers)], capture_output=True, text=True, timeout=500, check=False
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    rows = [row for path in tmp_path.glob("out/rows-*.parquet") for row in pq.read_table(path).to_pylist()]
    assert sorted(row["id"] for row in rows) == [f"{tmp_path}/{number}.txt" for number in range(4)]
    assert all(isinstance(row["day"], datetime.date) for row in rows)
    (letter,) = tmp_path.glob("out/rows.dead_letters-*.jsonl")
    assert json.loads(letter.read_text())["id"] == f"{tmp_path}/4.txt"
    nothing_is_left(runtime)
