"""The benchmark of a job that answers a topic says what messages cost, and which of them have no answer."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import kafka_growth
from benchmarks.growth import Watch
from benchmarks.kafka_growth import main, message, number_of, stretches
from benchmarks.small_tables import small_table
from benchmarks.storms.job import Job


class _Watch(Watch):
    """Processes that use 1 ms a message more at each look."""

    looks = 0

    def cpu_s(self) -> dict[str, float]:
        self.looks += 1
        return {"launcher": self.looks * 0.9, "engine": self.looks * 0.09}

    def peak_mb(self) -> dict[str, float]:
        return {"launcher": 200.0 + self.looks, "engine": 50.0}


def test_a_stretch_is_between_two_powers_of_ten(tmp_path: Path) -> None:
    counts = iter([0, 500, 1_010, 2_000, 10_010, 25_000])
    found = stretches(_Watch(Job(tmp_path, [])), counts, 25_000)
    assert [each.messages for each in found] == [10_010, 25_000]
    assert found[0].ms_a_message_by_role == {"launcher": 0.1, "engine": 0.01}
    assert found[0].ms_a_message == 0.11
    assert found[1].mb == {"launcher": 203.0, "engine": 50.0}


def test_the_last_stretch_ends_with_the_last_message(tmp_path: Path) -> None:
    found = stretches(_Watch(Job(tmp_path, [])), iter([1_000, 1_200]), 1_200)
    assert [each.messages for each in found] == [1_200]
    late = stretches(_Watch(Job(tmp_path, [])), iter([0, 12_000, 12_000, 13_000, 25_000]), 25_000)
    assert [each.messages for each in late] == [25_000], "a look may pass two powers of ten"


def test_an_answer_names_its_message() -> None:
    assert number_of(json.loads(message(17))["id"].encode()) == 17


def test_the_table_has_a_line_for_each_stretch() -> None:
    stretch = {"messages": 10_000, "messages_per_s": 1435.8, "ms_a_message": 0.754, "mb": {"launcher": 195.4}}
    lines = small_table({"stretches": [stretch], "machine": "M", "taken": "D"}).splitlines()
    assert lines[0] == "| messages | messages/s | processor time of a further message, ms | launcher, MB |"
    assert lines[2] == "| 10,000 | 1,436 | 0.75 | 195 |"


@pytest.mark.runners
def test_a_topic_is_answered_and_each_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka_growth, "_FIRST_MARK", 10)
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")  # else all may be answered between two looks
    kept = tmp_path / "growth-kafka.json"
    monkeypatch.setattr(sys, "argv", ["kafka_growth", "--messages", "3000", "--results", str(kept)])
    main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures == json.loads(kept.read_text())
    assert (figures["messages"], figures["unanswered"], figures["doubled"]) == (3000, 0, 0)
    assert figures["stretches"][-1]["messages"] == 3000
    assert all(mb > 0 for mb in figures["stretches"][-1]["mb"].values())
    assert set(figures["stretches"][-1]["mb"]) == {"launcher", "prism", "manager", "engine"}
