"""A Kafka broker of the test's own: one process in KRaft mode, installed once by Maven.

python -m tests.servers.kafka PORT TOPIC …    runs one, with these topics, until Ctrl-C
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.servers.installed import installed
from tests.servers.processes import free_port, serving
from tests.waiting import eventually

VERSION = "4.1.2"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>test</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""
_SETTINGS = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={folder}/log
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
_JAVA = ("java", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_ANSWER_SECONDS = 120.0
_NOT_YET = (KafkaError.NOT_COORDINATOR, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)


@dataclass(frozen=True)
class Kafka:
    """A running broker."""

    address: str
    """HOST:PORT."""

    def topic(self, partitions: int = 1, name: str | None = None) -> str:
        """A new topic."""
        name = name or f"topic-{uuid.uuid4().hex[:8]}"
        admin = self._admin()
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(_ANSWER_SECONDS)
        return name

    def send(self, topic: str, messages: Iterable[bytes | Mapping[str, Any]]) -> None:
        """Payloads, or what else Producer.produce takes, one after the other."""
        producer = Producer({"bootstrap.servers": self.address})
        for message in messages:
            producer.produce(topic, **({"value": message} if isinstance(message, bytes) else message))
            producer.poll(0)
        assert producer.flush(_ANSWER_SECONDS) == 0

    def received(self, topic: str, count: int, seconds: float = 300.0) -> list[Any]:
        """The topic's messages, from its beginning, as soon as there are so many; else, after that time, all that were
        there at the call.
        """
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": uuid.uuid4().hex})
        places = [TopicPartition(topic, number, 0) for number in self._partitions(topic)]
        ends = [consumer.get_watermark_offsets(place, timeout=_ANSWER_SECONDS)[1] for place in places]
        consumer.assign(places)
        end, found = time.monotonic() + seconds, list[Any]()
        while len(found) < count and (time.monotonic() < end or _is_behind(consumer.position(places), ends)):
            found += [each for each in consumer.consume(count, timeout=0.2) if each.error() is None]
        consumer.close()
        return found

    def committed(self, topic: str, group: str = "millrace") -> int:
        """How many messages a group has behind it."""
        return sum(self.offsets(topic, group).values())

    def offsets(self, topic: str, group: str = "millrace") -> dict[int, int]:
        """How far a group has got, by partition."""
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group})
        asked = [TopicPartition(topic, number) for number in self._partitions(topic)]
        places = consumer.committed(asked, timeout=_ANSWER_SECONDS)
        consumer.close()
        return {place.partition: max(place.offset, 0) for place in places}

    def answers(self) -> bool:
        """Whether it does."""
        try:
            return bool(self._admin().list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    def _partitions(self, topic: str) -> list[int]:
        return sorted(self._admin().list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic].partitions)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})


def libraries() -> Path:
    """The folder of its jars, fetched the first time."""
    return installed("kafka", VERSION, _install) / "lib"


@contextlib.contextmanager
def kafka(folder: Path, port: int | None = None) -> Iterator[Kafka]:
    """A broker with its data in `folder`; by default on any port that is free."""
    ports = {"broker": port or free_port(), "controller": free_port()}
    settings = folder / "server.properties"
    settings.write_text(_SETTINGS.format(folder=folder, **ports))
    java = [*_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{libraries()}/*"]
    identity = ["-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(settings)]
    subprocess.run([*java, "kafka.tools.StorageTool", "format", *identity], check=True, capture_output=True)
    broker = Kafka(f"127.0.0.1:{ports['broker']}")
    with serving([*java, "kafka.Kafka", str(settings)], broker.answers, log=folder / "kafka.log"):
        yield broker


def until(holds: Callable[[], bool], what: str = "") -> None:
    """Wait for a condition, which must come about; a broker that just began, or is busy, cannot say yet."""

    def holds_by_now() -> bool:
        try:
            return holds()
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].code() not in _NOT_YET:
                raise
            return False

    eventually(holds_by_now, what)


def _is_behind(places: list[TopicPartition], ends: list[int]) -> bool:
    return any(max(place.offset, 0) < end for place, end in zip(places, ends, strict=True))


def main(port: str, *topics: str) -> None:
    """Until it is interrupted."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.suppress(KeyboardInterrupt),
        kafka(Path(folder), int(port)) as broker,
    ):
        for topic in topics:
            broker.topic(partitions=4, name=topic)
        print(broker.address, *topics, flush=True)
        signal.pause()


def _install(folder: Path) -> None:
    pom = folder / "pom.xml"
    pom.write_text(_POM)
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}", "-DincludeScope=runtime"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *copy], check=True, capture_output=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
