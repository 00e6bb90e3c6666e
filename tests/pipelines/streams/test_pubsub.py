"""A subscription, or a topic, of Pub/Sub's as input, and a topic as output."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.transforms.streams.pubsub.connection import LEASE_SECONDS
from tests.job_commands import job_command, started
from tests.pipelines.streams.jobs import WITHIN, interrupted, nothing_is_left, quick_flags, rows, stream
from tests.runtime_folders import status_of
from tests.servers.kafka import until
from tests.servers.pubsub import PubSub

_TOLD_LATE = """
import sys, time
from pathlib import Path
from apache_beam.runners.portability import portable_runner
from millrace.pipelines.cli import main

run = portable_runner.JobServiceHandle.run

def told_late(self, preparation_id):
    answer = run(self, preparation_id)
    while not Path(sys.argv[0]).exists():
        time.sleep(0.05)
    return answer

portable_runner.JobServiceHandle.run = told_late
sys.argv = sys.argv[1:]
main()
"""
"""The command, which hears that its job was submitted only when there is a file, its first argument."""

pytestmark = [pytest.mark.runners, pytest.mark.slow]


def test_a_subscription_is_answered_into_a_topic_until_ctrl_c(server: PubSub, runtime: Path) -> None:
    prompts, answers = server.topic(), server.topic()
    source, sink = server.subscription(prompts), server.subscription(answers)
    server.send(prompts, rows(range(60)))
    server.send(prompts, [(b"hello", {"id": "own", "max_tokens": "2", "customer": "17"}), b"not JSON"])
    with stream(f"pubsub:{source}", f"pubsub:{answers}") as job:
        found = server.received(sink, 62)
        until(lambda: server.counts(prompts)["acknowledged"] == 62)
        told = interrupted(job)
    assert told.strip().endswith(f"the next job on pubsub:{source} gets what this one did not finish")
    by_id = {message.attributes["id"]: (message, json.loads(message.data)) for message in found}
    assert len(found) == len(by_id) == 62
    assert {f"p{number}" for number in range(60)} < by_id.keys()
    letters = [message for message, row in by_id.values() if "error" in row]
    assert [message.attributes["kind"] for message in letters] == ["dead_letter", "dead_letter"]
    assert server.counts(prompts)["delivered"] == 62
    nothing_is_left(runtime)


def test_attributes_are_a_texts_id_and_parameters(server: PubSub, runtime: Path) -> None:
    prompts, answers = server.topic(), server.topic()
    source, sink = server.subscription(prompts), server.subscription(answers)
    server.send(prompts, [(b"hello", {"id": "own", "max_tokens": "2", "customer": "17"})])
    with stream(f"pubsub:{source}", f"pubsub:{answers}", "--input_format=text"):
        (message,) = server.received(sink, 1)
    row = json.loads(message.data)
    assert (row["id"], row["usage"]["completion_tokens"], row["columns"]) == ("own", 2, {"customer": "17"})
    assert dict(message.attributes) == {"id": "own", "kind": "result"}
    nothing_is_left(runtime)


def test_what_is_published_to_a_topic_from_the_start_on_is_answered(server: PubSub, runtime: Path) -> None:
    prompts, answers = server.topic(), server.topic()
    sink = server.subscription(answers)
    with stream(f"pubsub:{prompts}", f"pubsub:{answers}") as job:
        found = list[Any]()
        for number in range(1000):  # until the job has its subscription, nobody hears
            server.send(prompts, rows([number]))
            if found := server.received(sink, 1, seconds=2):
                break
        interrupted(job)
    assert found
    nothing_is_left(runtime)


def test_a_lease_outlasts_its_subscriptions_deadline(
    server: PubSub, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "4.5")
    prompts, answers = server.topic(), server.topic()
    source, sink = server.subscription(prompts, deadline=15), server.subscription(answers)
    server.send(prompts, rows(range(3)))
    with stream(f"pubsub:{source}", f"pubsub:{answers}") as job:
        assert len(server.received(sink, 3)) == 3
        until(lambda: server.counts(prompts)["acknowledged"] == 3)
        interrupted(job)
    assert server.counts(prompts)["delivered"] == 3
    nothing_is_left(runtime)


def has_read(runtime: Path, rows: int) -> bool:
    """Whether a job has asked for so many answers; the server may have delivered what no reader has in hand yet."""
    status = status_of(runtime)
    return status is not None and sum(model.outstanding for model in status.models) == rows


@contextlib.contextmanager
def with_eight_in_hand(
    server: PubSub, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A subscription, and a job that has read eight messages of it, and answers none for long."""
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "1")
    prompts, answers = server.topic(), server.topic()
    source = server.subscription(prompts)
    server.send(prompts, rows(range(8)))
    with stream(f"pubsub:{source}", f"pubsub:{answers}", "--max_tokens=1000") as job:
        until(lambda: has_read(runtime, 8))
        yield source, job


def test_what_a_stopped_job_had_in_hand_is_there_for_the_next_at_once(
    server: PubSub, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_eight_in_hand(server, runtime, monkeypatch) as (source, job):
        interrupted(job)
    assert len(server.received(source, 8, seconds=LEASE_SECONDS / 3)) == 8
    nothing_is_left(runtime)


@pytest.mark.parametrize("impatient", [False, True], ids=["once", "twice"])
def test_what_a_job_has_read_before_it_hears_that_it_was_submitted_is_given_back_at_ctrl_c(
    server: PubSub, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: bool
) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "1")
    prompts, answers, told = server.topic(), server.topic(), tmp_path / "told"
    source = server.subscription(prompts)
    server.send(prompts, rows(range(8)))
    _, _, _, *words = job_command("run", f"pubsub:{source}", f"pubsub:{answers}")
    command = [sys.executable, "-c", _TOLD_LATE, str(told), *words, *quick_flags(), "--max_tokens=1000"]
    with started(command, stderr=subprocess.PIPE) as job:
        until(lambda: has_read(runtime, 8))
        job.send_signal(signal.SIGINT)
        assert job.stderr is not None
        assert any("ending as soon as Prism has the job" in line for line in job.stderr)
        if impatient:
            job.send_signal(signal.SIGINT)
        else:
            told.touch()
        _, shown = job.communicate(timeout=WITHIN)
        assert job.returncode == 130, shown
    assert len(server.received(source, 8, seconds=LEASE_SECONDS / 3)) == 8
    nothing_is_left(runtime)


def test_what_a_job_had_in_hand_is_given_back_when_its_prism_dies(
    server: PubSub, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_eight_in_hand(server, runtime, monkeypatch) as (source, job):
        below = psutil.Process(job.pid).children(recursive=True)
        (its_prism,) = (each for each in below if each.name() == "prism")
        its_prism.kill()
        _, told = job.communicate(timeout=WITHIN)
    assert job.returncode == 1, told
    assert len(server.received(source, 8, seconds=LEASE_SECONDS / 3)) == 8
    nothing_is_left(runtime)
