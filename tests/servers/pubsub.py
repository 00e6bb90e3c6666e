"""A Pub/Sub of the test's own: the in-memory server of Google's Go client, which speaks the real protocol.

Built once from go_programs/pubsubserver/. Clients find it by PUBSUB_EMULATOR_HOST.

python -m tests.servers.pubsub PORT TOPIC …    runs one, with these topics, and a subscription of the same name to each,
                                               in the project millrace-test, until Ctrl-C
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.api_core.exceptions import DeadlineExceeded
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient

from tests.servers.go_programs import go_program
from tests.servers.processes import free_port, listens, serving

_PROJECT = "projects/millrace-test"


@dataclass(frozen=True)
class PubSub:
    """A running server."""

    address: str
    """Value of PUBSUB_EMULATOR_HOST."""
    status: str

    def topic(self, name: str | None = None) -> str:
        """A new topic."""
        name = f"{_PROJECT}/topics/{name or f'topic-{uuid.uuid4().hex[:8]}'}"
        PublisherClient().create_topic(name=name)
        return name

    def subscription(self, topic: str, deadline: int = 600, name: str | None = None) -> str:
        """A new subscription to a topic; what is not acknowledged within `deadline` seconds comes again."""
        name = f"{_PROJECT}/subscriptions/{name or f'subscription-{uuid.uuid4().hex[:8]}'}"
        with SubscriberClient() as client:
            client.create_subscription(name=name, topic=topic, ack_deadline_seconds=deadline)
        return name

    def send(self, topic: str, messages: Iterable[bytes | tuple[bytes, Mapping[str, str]]]) -> None:
        """Payloads, with attributes or without."""
        publisher = PublisherClient()
        pairs = [(each, {}) if isinstance(each, bytes) else each for each in messages]
        for future in [publisher.publish(topic, data, **attributes) for data, attributes in pairs]:
            future.result(timeout=120)
        publisher.stop()

    def received(self, subscription: str, count: int, seconds: float = 300.0) -> list[Any]:
        """Messages, acknowledged, as soon as there are so many; else those that there are."""
        end, found = time.monotonic() + seconds, list[Any]()
        with SubscriberClient() as client:
            while len(found) < count and time.monotonic() < end:
                with contextlib.suppress(DeadlineExceeded):
                    answer = client.pull(subscription=subscription, max_messages=count, timeout=2, retry=None)
                    got = answer.received_messages
                    if got:
                        client.acknowledge(subscription=subscription, ack_ids=[each.ack_id for each in got])
                    found += [each.message for each in got]
        return found

    def counts(self, topic: str) -> dict[str, int]:
        """Messages of a topic that were published, delivered (how often) and acknowledged (by somebody)."""
        query = urllib.parse.urlencode({"topic": topic})
        with urllib.request.urlopen(f"http://{self.status}/?{query}", timeout=30) as answer:
            return dict(json.loads(answer.read()))


def program() -> Path:
    """Built the first time."""
    return go_program("pubsubserver")


@contextlib.contextmanager
def pubsub(folder: Path, port: int | None = None) -> Iterator[PubSub]:
    """A server, with its log in `folder`; while it runs, this process's clients and its children's find it."""
    port, status = port or free_port(), free_port()
    before = os.environ.get("PUBSUB_EMULATOR_HOST")
    command: list[str | Path] = [program(), str(port), str(status)]
    with serving(command, lambda: listens(port) and listens(status), log=folder / "pubsub.log"):
        os.environ["PUBSUB_EMULATOR_HOST"] = f"127.0.0.1:{port}"
        try:
            yield PubSub(f"127.0.0.1:{port}", f"127.0.0.1:{status}")
        finally:
            os.environ.pop("PUBSUB_EMULATOR_HOST")
            if before is not None:
                os.environ["PUBSUB_EMULATOR_HOST"] = before


def main(port: str, *topics: str) -> None:
    """Until it is interrupted."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.suppress(KeyboardInterrupt),
        pubsub(Path(folder), int(port)) as server,
    ):
        for topic in topics:
            server.subscription(server.topic(topic), name=topic)
        print(f"PUBSUB_EMULATOR_HOST={server.address}", *topics, flush=True)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
