"""Kafka's clients in a worker process: their settings, and the consumers, one a partition, kept between bundles."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millrace.model_manager.wire.errors import ConfigError, MillraceError

from ...addresses import KafkaTopic
from ..unbounded import Finals, ReadingTurn

_FIRST_SECONDS = 1.0
"""How long a reader waits for a first message before it lets its bundle end."""
_MORE_SECONDS = 0.05
_COMMIT_SECONDS = 24 * 3600.0
"""Offsets of a group without members, as ours is, are forgotten after 7 days (offsets.retention.minutes)."""
_PREFETCH = {"queued.min.messages": 256, "queued.max.messages.kbytes": 4096}
"""For each partition. librdkafka's defaults, 100,000 and 64 MiB, would hold the backlog in the worker's memory."""
_log = logging.getLogger(__name__)
_log_of_librdkafka = logging.getLogger("librdkafka")


class KafkaFailed(MillraceError):
    """A broker refused or lost a request; the runner decides whether to try again."""


def client_settings(topic: KafkaTopic, **settings: Any) -> dict[str, Any]:
    """Settings of a client. Raises ConfigError for a file of properties that cannot be read."""
    return {
        "bootstrap.servers": topic.brokers,
        "logger": _log_of_librdkafka,
        **_properties(topic.properties),
        **settings,
    }


def _properties(path: str) -> dict[str, str]:
    if not path:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"properties={path}: {error.strerror}; takes a file of lines name=value") from None
    pairs = [line.partition("=") for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {name.strip(): value.strip() for name, _, value in pairs}


class Readers:
    """The consumers of this process, one a partition. Each is kept between bundles, with its fetched messages."""

    def __init__(self, topic: KafkaTopic, *, late: bool) -> None:
        self._topic = topic
        self._late = late
        self._lock = threading.Lock()
        self._free: dict[int, PartitionReader] = {}
        weakref.finalize(self, _close_all, self._free)

    @contextmanager
    def taken(self, partition: int) -> Iterator[PartitionReader]:
        with self._lock:
            reader = self._free.pop(partition, None)
        reader = reader or PartitionReader(self._topic, partition, late=self._late)
        try:
            yield reader
        finally:
            with self._lock:
                unwanted = self._free.pop(partition, None)  # of a bundle that failed, and went on beside its retry
                self._free[partition] = reader
            if unwanted is not None:
                unwanted.close()


def _close_all(readers: dict[int, PartitionReader]) -> None:
    while readers:
        readers.popitem()[1].close()


class PartitionReader:
    """A consumer of one partition, without a group's rebalancing: the runner says who reads what."""

    def __init__(
        self, topic: KafkaTopic, partition: int, *, late: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`late`: bundles are final as Flink has it."""
        self._place = (topic.topic, partition)
        self._name = f"{topic}, partition {partition}"
        self._consumer = Consumer(
            client_settings(
                topic,
                **{
                    "group.id": topic.group,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                    **_PREFETCH,
                },
            )
        )
        self._next: int | None = None
        self._committed: int | None = None
        self._committed_at = -math.inf
        self._clock = clock
        self.finals = Finals(self._commit, late=late)
        self._lock = threading.RLock()
        """Held for a commit and for the end. Re-entrant: the garbage collector may close a reader in any thread."""
        self._is_closed = False
        self.at_end = False
        """Whether the last that was heard of the broker is that there is no more."""

    def records(self, start: int, turn: ReadingTurn) -> Iterator[Any]:
        """Messages from an offset on, until the turn is over or none is there; waits a moment for the first."""
        if self._committed is None:
            self._committed = start
        if self._next != start:
            self._consumer.assign([TopicPartition(*self._place, start)])
            self._next = start
        wait = _FIRST_SECONDS
        while not turn.is_over and (record := self._consumer.poll(wait)) is not None:
            error = record.error()
            if error is None:
                self.at_end = False
                offset = int(record.offset() or 0)
                if offset < self._next:
                    raise KafkaFailed(f"{self._name}: {self._next} is followed by {offset}: the topic was made anew")
                self._next = offset + 1
                turn.took()
                yield record
                wait = _MORE_SECONDS
            elif error.code() == KafkaError._PARTITION_EOF:
                self.at_end = True
                if wait == _MORE_SECONDS:
                    return
            else:
                raise KafkaFailed(f"{self._name}: {error.str()}")

    def owes(self, offset: int) -> bool:
        """True if an offset is to be committed: the first, one further on, and the last one once a day."""
        if offset == self._committed:
            return self._clock() - self._committed_at >= _COMMIT_SECONDS
        return self._committed is None or offset > self._committed

    def _commit(self, offsets: list[int]) -> None:
        """What is before the last is done; never goes back. Called when a bundle is committed, on any thread.

        A reader that is closed commits nothing: the partition's other reader does, when it has read as far. Without
        such a bundle the messages are read again.
        """
        with self._lock:
            offset = max(offsets, default=-1)
            if offset < 0 or not self.owes(offset):
                return
            if self._is_closed:
                _log.info("%s: offset %d is left to the partition's other reader", self._name, offset)
                return
            try:
                self._consumer.commit(offsets=[TopicPartition(*self._place, offset)], asynchronous=False)
            except KafkaException as error:
                _log.warning("%s: %d is not committed yet: %s", self._name, offset, error.args[0].str())
                return
            self._committed, self._committed_at = offset, self._clock()

    def close(self) -> None:
        """Close the connections to the brokers, after a commit that runs."""
        with self._lock:
            self._is_closed = True
            self._consumer.close()
