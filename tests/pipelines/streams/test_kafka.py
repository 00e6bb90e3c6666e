"""A topic of Kafka's as input, or as output: all is answered, what was not finished comes again."""

import json
from pathlib import Path

import pytest

from millrace.pipelines.commands.job_commands import generate as main
from tests.pipelines.streams.jobs import WITHIN, interrupted, nothing_is_left, rows, stream
from tests.servers.kafka import Kafka, until

pytestmark = [pytest.mark.runners, pytest.mark.slow]


def test_a_topic_is_answered_into_another_until_ctrl_c(broker: Kafka, runtime: Path) -> None:
    prompts, answers = broker.topic(partitions=3), broker.topic()
    broker.send(prompts, rows(range(60)))
    headers = [("id", b"own"), ("max_tokens", b"2"), ("customer", b"17")]
    broker.send(prompts, [{"value": b'"hello"', "headers": headers, "key": b"k"}, b"not JSON"])
    with stream(f"kafka:{broker.address}/{prompts}", f"kafka:{broker.address}/{answers}") as job:
        found = broker.received(answers, 62)
        broker.send(prompts, rows(range(60, 70)))
        found = broker.received(answers, 72)
        until(lambda: broker.committed(prompts) == 72)
        told = interrupted(job)
    assert "71 rows answered, 1 failed, of 72 rows read" in told.splitlines()
    assert f"completions:  kafka:{broker.address}/{answers}" in told.splitlines()
    source = f"kafka:{broker.address}/{prompts}"
    assert told.strip().endswith(f"interrupted; the next job on {source} gets what this one did not finish")
    by_key = {record.key().decode(): (record, json.loads(record.value())) for record in found}
    assert len(found) == len(by_key) == 72
    assert {f"p{number}" for number in range(70)} < by_key.keys()
    assert by_key["own"][1]["usage"]["completion_tokens"] == 2
    assert by_key["own"][1]["columns"] == {"customer": "17", "key": "k"}
    assert dict(by_key["own"][0].headers()) == {"id": b"own", "kind": b"result"}
    (letter,) = (each for each, row in by_key.values() if "error" in row)
    assert dict(letter.headers())["kind"] == b"dead_letter"
    assert letter.key().decode().startswith(f"kafka:{prompts}/")
    nothing_is_left(runtime)


def test_what_a_killed_job_had_not_finished_comes_again(
    broker: Kafka, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.05")
    prompts, answers = broker.topic(partitions=2), broker.topic()
    addresses = f"kafka:{broker.address}/{prompts}?group=mine", f"kafka:{broker.address}/{answers}"
    broker.send(prompts, rows(range(300)))
    with stream(*addresses, "--max_num_seqs=8") as job:
        broker.received(answers, 40)
        job.kill()
    nothing_is_left(runtime)
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0")
    with stream(*addresses) as job:
        until(lambda: broker.committed(prompts, "mine") == 300)
        interrupted(job)
    found = broker.received(answers, 1000, seconds=3)
    assert {record.key().decode() for record in found} == {f"p{number}" for number in range(300)}
    nothing_is_left(runtime)


def test_a_topic_that_is_not_there_is_one_sentence(broker: Kafka, runtime: Path) -> None:
    place = f"kafka:{broker.address}/none"
    with stream(place, f"kafka:{broker.address}/answers") as job:
        shown, told = job.communicate(timeout=WITHIN)
    assert (job.returncode, shown) == (2, "")
    assert told.splitlines()[1:] == [f"millrace: {place}: Broker: Unknown topic or partition"]
    nothing_is_left(runtime)


@pytest.mark.usefixtures("runtime")
def test_files_are_answered_into_a_topic(broker: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.jsonl").write_bytes(b"\n".join([*rows(range(20)), b"not JSON"]))
    answers, letters = broker.topic(), broker.topic()
    places = ["--input", str(tmp_path / "prompts.jsonl"), "--output", f"kafka:{broker.address}/{answers}"]
    letters_to = ["--dead_letters", f"kafka:{broker.address}/{letters}"]
    assert main([*places, *letters_to, "--backend=fake", "--max_tokens=4", "--linger=0.5"]) == 0
    assert len(broker.received(answers, 20)) == 20
    assert len(broker.received(letters, 1)) == 1
    shown = capsys.readouterr().out
    assert f"completions:  kafka:{broker.address}/{answers}" in shown
    assert f"dead letters: 1 row in kafka:{broker.address}/{letters}" in shown
