"""A subscription, or a topic, of Pub/Sub's as input, and a topic as output."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.streams.jobs import interrupted, nothing_is_left, rows, stream
from tests.servers.kafka import until
from tests.servers.pubsub import PubSub

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


def test_what_a_stopped_job_had_in_hand_is_there_for_the_next_at_once(
    server: PubSub, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "1")
    prompts, answers = server.topic(), server.topic()
    source = server.subscription(prompts)
    server.send(prompts, rows(range(8)))
    with stream(f"pubsub:{source}", f"pubsub:{answers}", "--max_tokens=1000") as job:
        until(lambda: server.counts(prompts)["delivered"] == 8)
        interrupted(job)
    assert len(server.received(source, 8, seconds=60)) == 8
    nothing_is_left(runtime)
