"""Kafka: prompts from a topic, results to one, by librdkafka (confluent-kafka) in the workers themselves.

A partition is read in order by one reader at a time. What a bundle read is committed to the consumer group when the
runner has committed the bundle, so nothing is lost, and what a failed bundle read comes again (at least once). The
runner's own checkpoint, where it has one, says where to go on; the group says where a new job begins.
docs/how-to/streams.md is the tour, docs/explanation/architecture.md says why this is not Beam's KafkaIO.
"""

from .connection import KafkaFailed
from .reader import ReadKafka
from .writer import WriteKafka

__all__ = ["KafkaFailed", "ReadKafka", "WriteKafka"]
