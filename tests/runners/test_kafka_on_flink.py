"""Kafka on a Flink cluster: every partition is read, and neither a kill nor a cancel loses a row."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from millrace.model_manager.client.status import stop_models
from tests.job_commands import job_command, started
from tests.runners.targets import Servers, targets
from tests.runners.watching import nothing_is_left
from tests.servers.kafka import Kafka, kafka, until

pytestmark = [pytest.mark.runners, pytest.mark.timeout(1800)]

PARTITIONS = 5
"""More than there are tasks."""
FIRST, ALL = 30, 120
TOKENS = 32
_TARGET = [target for target in targets() if target.name == "flink-streaming-process"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Kafka]:
    with kafka(tmp_path) as running:
        yield running


def job(flags: list[str], broker: Kafka, prompts: str, answers: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """`millrace run` in a process of its own."""
    command = job_command("run", f"kafka:{broker.address}/{prompts}", f"kafka:{broker.address}/{answers}")
    command += [f"--max_tokens={TOKENS}", f"--min_tokens={TOKENS}"]
    command += ["--backend=fake", "--max_num_seqs=2", *flags, "--checkpointing_interval=1000"]
    return started(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def send(broker: Kafka, topic: str, numbers: Iterable[int]) -> None:
    rows = ((number, json.dumps({"id": f"r{number}", "prompt": f"What is {number}?"})) for number in numbers)
    broker.send(topic, [{"value": row.encode(), "partition": number % PARTITIONS} for number, row in rows])


def answered(broker: Kafka, topic: str) -> set[str]:
    """Ids of the rows that have an answer by now."""
    found = broker.received(topic, 100_000, seconds=0.0)
    assert all(dict(each.headers())["kind"] == b"result" for each in found)
    return {each.key().decode() for each in found}


def committed(broker: Kafka, topic: str) -> set[str]:
    """Ids of the rows that the next job does not get."""
    offsets = broker.offsets(topic)
    return {f"r{number + PARTITIONS * offset}" for number, end in offsets.items() for offset in range(end)}


def ids(count: int) -> set[str]:
    return {f"r{number}" for number in range(count)}


@pytest.mark.skipif(not _TARGET, reason="RUNNER names others")
def test_all_partitions_are_read_and_neither_a_killed_task_manager_nor_the_end_loses_anything(
    servers: Servers, runtime: Path, broker: Kafka
) -> None:
    prompts, answers = broker.topic(PARTITIONS), broker.topic(2)
    send(broker, prompts, range(FIRST))
    with job(_TARGET[0].job_flags(servers), broker, prompts, answers) as process:
        until(lambda: answered(broker, answers) == ids(FIRST), "all partitions are read")
        until(lambda: committed(broker, prompts) == ids(FIRST), "what is answered is committed")

        send(broker, prompts, range(FIRST, ALL))
        until(lambda: len(answered(broker, answers)) > FIRST + 20, "some more are answered")
        servers.cluster.kill("task-manager-1")
        servers.cluster.up()  # as a cluster's supervisor would
        until(lambda: answered(broker, answers) == ids(ALL), "all are answered")
        until(lambda: committed(broker, prompts) == ids(ALL), "all are committed")

        send(broker, prompts, range(ALL, 10 * ALL))
        until(lambda: len(answered(broker, answers)) > ALL + 20, "some more are answered")
        servers.cluster.cancel()
        process.wait(300)
    assert committed(broker, prompts) <= answered(broker, answers)
    assert len(answered(broker, answers)) < 10 * ALL, "the job is too fast for this test"
    stop_models(runtime)
    nothing_is_left(runtime)
