"""A Kafka topic's messages → prompts.

partitions, each from where the group has got to ─► a reader each ─► messages ─► prompts
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Unpack

from apache_beam.transforms.display import DisplayDataItem
from apache_beam.transforms.window import TimestampedValue
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition

from millrace.model_manager.wire.errors import ConfigError

from ...addresses import KafkaTopic
from ..broker_messages import BrokerMessage, MessageSettings, ReadMessages
from ..readers import Reader, ReaderDoFn, ReadSteps, spread
from ..unbounded import PositionTracker, ReadingTurn, StreamTime
from .connection import Readers, client_settings

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 15.0
_NOT_YET = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
"""What a broker says of groups that began a moment ago."""
_NO_CONNECTION = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
_log = logging.getLogger(__name__)


class ReadKafka(ReadMessages):
    """Prompts from a topic's messages, at the time that the topic has for them.

    A row without an id is identified by its position, `kafka:TOPIC/PARTITION@OFFSET`. Headers complete rows
    (streams/broker_messages.py), and a message's key becomes the column `key`. Partitions added later are read by the
    next job.
    """

    def __init__(self, topic: str | KafkaTopic, **rows: Unpack[MessageSettings]) -> None:
        """`topic`: an address, `kafka:HOST:PORT/TOPIC`. `rows`: as ReadMessages takes them."""
        super().__init__(**rows)
        self.topic = KafkaTopic.parse(topic) if isinstance(topic, str) else topic

    def messages(self, root: Any) -> Any:
        return spread(root, self.topic, partitions_of, _Read, self._drain)

    def display_data(self) -> dict[str, Any]:
        return {"topic": DisplayDataItem(str(self.topic), label="Topic")}


def partitions_of(topic: KafkaTopic) -> list[Reader]:
    """All partitions, each from where the group has got to.

    Raises ConfigError where there is no such topic, or within 10 s no broker.
    """
    try:
        with _consumer(topic) as consumer:
            found = consumer.list_topics(topic.topic, timeout=_CONNECT_SECONDS).topics[topic.topic]
            if found.error is not None:
                raise KafkaException(found.error)
            places = [TopicPartition(topic.topic, number) for number in sorted(found.partitions)]
            reached = _reached(consumer, places)
            return [Reader(place.partition, _begin(consumer, topic, place)) for place in reached]
    except KafkaException as error:
        raise ConfigError(f"{topic}: {_reason(topic, error.args[0])}") from None


def _reason(topic: KafkaTopic, error: KafkaError) -> str:
    return f"cannot connect to {topic.brokers} ({error.str()})" if error.code() in _NO_CONNECTION else error.str()


def _reached(consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
    end = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            return consumer.committed(places, timeout=_ANSWER_SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET or time.monotonic() > end:
                raise
            time.sleep(0.2)


def _begin(consumer: Consumer, topic: KafkaTopic, place: TopicPartition) -> int:
    first, end = consumer.get_watermark_offsets(place, timeout=_ANSWER_SECONDS)
    if place.offset > end:
        _log.warning(
            "%s, partition %d: ends at %d, before its group's %d: begins anew",
            topic,
            place.partition,
            end,
            place.offset,
        )
        return int(first)
    if place.offset >= 0:
        return int(max(place.offset, first))
    return int(first if topic.begin == "earliest" else end)


@contextmanager
def _consumer(topic: KafkaTopic) -> Iterator[Consumer]:
    consumer = Consumer(client_settings(topic, **{"group.id": topic.group, "enable.auto.commit": False}))
    try:
        yield consumer
    finally:
        consumer.close()


class _Read(ReaderDoFn[KafkaTopic, Readers]):
    def connect(self) -> Readers:
        return Readers(self._address, late=self._late)

    def read(self, partition: Reader, turn: ReadingTurn, tracker: PositionTracker, times: StreamTime) -> ReadSteps:
        position = tracker.current_restriction().start
        with self._connection.taken(partition.number) as reader:
            seen = reader.finals.seen()
            for record in reader.records(position, turn):
                if not tracker.try_claim(record.offset()):
                    break
                position = record.offset() + 1
                yield TimestampedValue(_message(record), times.of(_seconds(record)))
            if reader.at_end:
                times.idle()
        return partial(reader.finals.on_final, seen, [position]) if reader.owes(position) else None


def _message(record: Any) -> BrokerMessage:
    attributes = {name: value.decode("utf-8", "replace") for name, value in record.headers() or () if value is not None}
    if record.key() is not None:
        attributes.setdefault("key", record.key().decode("utf-8", "replace"))
    position = f"kafka:{record.topic()}/{record.partition()}@{record.offset()}"
    return BrokerMessage(record.value() or b"", attributes, position)


def _seconds(record: Any) -> float:
    kind, milliseconds = record.timestamp()
    return 0.0 if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds / 1000
