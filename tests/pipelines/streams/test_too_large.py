"""Results that are larger than their topic takes."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined, unused-ignore]

from millrace.model_manager.wire.request import FinishReason
from millrace.pipelines.commands.job_commands import generate as main
from millrace.transforms.addresses import KafkaTopic
from millrace.transforms.elements.completions import Completion
from millrace.transforms.streams.kafka.writer import _Send
from tests.servers.kafka import Kafka

pytestmark = [pytest.mark.runners, pytest.mark.slow]


@pytest.mark.usefixtures("runtime")
def test_a_result_that_is_too_large_counts_as_a_failure(
    broker: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": "a", "prompt": "x", "big": "y" * 2_000_000}))
    answers = broker.topic()
    places = ["--input", str(tmp_path / "p.jsonl"), "--output", f"kafka:{broker.address}/{answers}"]
    assert main([*places, "--backend=fake", "--max_tokens=4", "--linger=0.1", "--orphan_grace=0.1"]) == 1
    assert "every row failed" in capsys.readouterr().out
    (record,) = broker.received(answers, 1)
    assert json.loads(record.value())["error"] == "MessageTooLarge"


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("to_files", [True, False])
def test_the_letter_of_a_result_that_is_too_large_goes_where_letters_go(
    broker: Kafka, tmp_path: Path, to_files: bool
) -> None:
    (tmp_path / "p.jsonl").write_text(
        "\n".join(json.dumps({"id": str(size), "prompt": "x", "big": "y" * size}) for size in (1, 2_000_000))
    )
    answers, letters = broker.topic(), broker.topic()
    letters_to = str(tmp_path / "l") if to_files else f"kafka:{broker.address}/{letters}"
    places = ["--input", str(tmp_path / "p.jsonl"), "--output", f"kafka:{broker.address}/{answers}"]
    assert main([*places, "--dead_letters", letters_to, "--backend=fake", "--max_tokens=4", "--linger=0.1"]) == 0
    assert [record.key() for record in broker.received(answers, 2, seconds=3)] == [b"1"]
    found = [path.read_text() for path in tmp_path.glob("l-*.jsonl")]
    found += [record.value().decode() for record in broker.received(letters, 1, seconds=1 if to_files else 30)]
    assert [(json.loads(row)["id"], json.loads(row)["error"]) for row in found] == [("2000000", "MessageTooLarge")]


def test_a_result_that_the_broker_refuses_is_a_dead_letter_and_its_neighbours_are_sent(broker: Kafka) -> None:
    answers = f"small-{uuid.uuid4().hex[:8]}"
    topic = NewTopic(answers, 1, 1, config={"max.message.bytes": "2000"})
    admin = broker._admin()
    admin.create_topics([topic])[answers].result(300)
    assert list(sent_to(f"kafka:{broker.address}/{answers}", gives_letters=False)) == []
    found = {record.key().decode(): json.loads(record.value()) for record in broker.received(answers, 3)}
    assert {name: row.get("error") for name, row in found.items()} == {"a": None, "b": "MessageTooLarge", "c": None}
    (letter,) = sent_to(f"kafka:{broker.address}/{answers}", gives_letters=True)
    assert (letter.value.id, letter.value.error, letter.timestamp) == ("b", "MessageTooLarge", 7)
    assert len(broker.received(answers, 6, seconds=3)) == 5


def sent_to(address: str, *, gives_letters: bool) -> Iterator[Any]:
    """Three results, the second one large, as a bundle; what the bundle's end gives."""
    send = _Send(KafkaTopic.parse(address), gives_letters=gives_letters)
    send.setup()
    send.start_bundle()
    for name, text in [("a", "x"), ("b", "x" * 5000), ("c", "y")]:
        result = Completion(id=name, text=text, finish_reason=FinishReason.STOP)
        assert list(send.process(result, WindowedValue(result, 7, (GlobalWindow(),)))) == []
    yield from send.finish_bundle()
