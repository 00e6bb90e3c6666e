"""How far a group has got, as its reader tells the broker."""

import pytest

from millrace.transforms.addresses import KafkaTopic
from millrace.transforms.streams.kafka import KafkaFailed
from millrace.transforms.streams.kafka.connection import PartitionReader
from millrace.transforms.streams.kafka.reader import partitions_of
from millrace.transforms.streams.readers import Reader
from millrace.transforms.streams.unbounded import ReadingTurn
from tests.pipelines.streams.jobs import rows
from tests.servers.kafka import Kafka, until

pytestmark = [pytest.mark.runners, pytest.mark.slow]


def test_a_group_hears_of_where_it_begins_and_of_where_it_is_each_day(broker: Kafka) -> None:
    prompts, now = broker.topic(), [0.0]
    broker.send(prompts, rows(range(5)))
    topic = KafkaTopic.parse(f"kafka:{broker.address}/{prompts}?begin=latest")
    (partition,) = partitions_of(topic)
    reader = PartitionReader(topic, 0, clock=lambda: now[0])
    assert list(reader.records(partition.start, ReadingTurn())) == []
    assert reader.owes(5)
    until(lambda: _committed(reader, 5) and broker.committed(prompts) == 5)
    assert not reader.owes(5)
    now[0] = 24 * 3600
    assert reader.owes(5)
    reader.close()


def _committed(reader: PartitionReader, offset: int) -> bool:
    reader.finals.on_final([], [offset])
    return not reader.owes(offset)


def test_a_topic_that_was_made_anew_is_told_and_begun_anew(broker: Kafka) -> None:
    prompts = broker.topic()
    broker.send(prompts, rows(range(5)))
    topic = KafkaTopic.parse(f"kafka:{broker.address}/{prompts}")
    reader = PartitionReader(topic, 0)
    with pytest.raises(KafkaFailed, match="9 is followed by 0: the topic was made anew"):
        until(lambda: bool(list(reader.records(9, ReadingTurn()))))
    until(lambda: _committed(reader, 9) and broker.committed(prompts) == 9)
    assert partitions_of(topic) == [Reader(0, 0)]
    reader.close()
