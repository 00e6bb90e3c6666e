"""A job from a topic to the files of windows: how it ends, and what it loses."""

import signal
from pathlib import Path

import pytest

from tests.json_lines import rows_of
from tests.pipelines.streams.jobs import interrupted, nothing_is_left, rows, stream
from tests.servers.kafka import Kafka, until

pytestmark = [pytest.mark.runners, pytest.mark.slow]


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_closes_the_windows_of_what_was_read(
    broker: Kafka, runtime: Path, tmp_path: Path, by: signal.Signals
) -> None:
    prompts = broker.topic(partitions=2)
    broker.send(prompts, [*rows(range(30)), b"not JSON"])
    with stream(f"kafka:{broker.address}/{prompts}", str(tmp_path / "c"), "--window=1000000000") as job:
        until(lambda: broker.committed(prompts) == 31)
        assert not list(tmp_path.glob("c-*.jsonl"))
        told = interrupted(job, by)
    assert "kill -9 or a failure of the job lose it" in told
    assert "ending: what was read is answered and written first" in told
    assert sorted(row["id"] for row in rows_of(tmp_path, "c-*.jsonl")) == sorted(f"p{number}" for number in range(30))
    assert len(list(tmp_path.glob("c.dead_letters-*.jsonl"))) == 1
    nothing_is_left(runtime)


def test_ctrl_c_waits_for_dead_letters_in_files(broker: Kafka, runtime: Path, tmp_path: Path) -> None:
    prompts, answers = broker.topic(), f"kafka:{broker.address}/{broker.topic()}"
    broker.send(prompts, [*rows(range(3)), b"not JSON"])
    letters = ["--dead_letters", str(tmp_path / "l"), "--window=1000000000"]
    with stream(f"kafka:{broker.address}/{prompts}", answers, *letters) as job:
        until(lambda: broker.committed(prompts) == 4)
        interrupted(job)
    assert [row["error"] for row in rows_of(tmp_path, "l-*.jsonl")] == ["UnreadableRow"]
    nothing_is_left(runtime)


def test_what_kill_9_takes_from_files_on_prism_is_what_the_page_says(
    broker: Kafka, runtime: Path, tmp_path: Path
) -> None:
    prompts = broker.topic()
    broker.send(prompts, rows(range(5)))
    with stream(f"kafka:{broker.address}/{prompts}", str(tmp_path / "c"), "--window=1000000000") as job:
        until(lambda: broker.committed(prompts) == 5)
        job.kill()
    nothing_is_left(runtime)
    assert not list(tmp_path.glob("c-*.jsonl"))
