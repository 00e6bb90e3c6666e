"""A Pub/Sub subscription's or topic's messages → prompts.

readers (a few) ─► pull, hold the leases ─► messages ─► prompts … bundle committed ─► acknowledge
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Unpack

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage, ReadFromPubSub
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.transforms.window import TimestampedValue
from google.api_core import exceptions
from google.cloud.pubsub_v1 import SubscriberClient

from millrace.model_manager.wire.errors import ConfigError

from ...addresses import PubSubAddress
from ...runners import runner_of
from ..broker_messages import BrokerMessage, MessageSettings, ReadMessages
from ..readers import Reader, ReaderDoFn, ReadSteps, spread
from ..unbounded import PositionTracker, ReadingTurn, StreamTime
from .connection import LEASE_SECONDS, Subscription, client_of, said_of

NUM_READERS = 4
"""So many that one can pull while another's bundle awaits its answers; fewer than Prism's eight bundles at a time."""
_PULL_SECONDS = 5.0
_PULL_MESSAGES = 32
_UNUSED = timedelta(days=1)
"""Time after which Pub/Sub removes our unused subscription: the shortest that it allows."""
_log = logging.getLogger(__name__)


class ReadPubSub(ReadMessages):
    """Prompts from the messages of a subscription, at the time of their publication.

    A topic gives the messages published after the job's start, through a subscription of the job's own, which Pub/Sub
    removes a day after the job is gone. A row without an id is known by its message, `pubsub:projects/…@MESSAGE_ID`.
    Attributes complete rows (streams/broker_messages.py).
    """

    def __init__(
        self,
        source: str | PubSubAddress,
        *,
        num_readers: int = NUM_READERS,
        outputs: Mapping[str, str] | None = None,
        **rows: Unpack[MessageSettings],
    ) -> None:
        """`source`: an address, `pubsub:projects/P/subscriptions/S`. `rows`: as ReadMessages takes them.

        `outputs`: the topics that the job writes, `projects/P/topics/T`, and what each is called: a subscription of one
        of them fails the job, which would go on without end. On Dataflow nobody asks.
        """
        super().__init__(**rows)
        self._written = dict(outputs or {})
        self.source = PubSubAddress.parse(source) if isinstance(source, str) else source
        self._num_readers = num_readers
        self._own_name = f"millrace-{uuid.uuid4().hex[:16]}"

    def messages(self, root: Any) -> Any:
        return self._through_beam(root) if runner_of(root.pipeline.options).has_pubsub else self._pulled(root)

    def _through_beam(self, root: Any) -> Any:
        place = {"topic" if self.source.is_topic else "subscription": self.source.path}
        position = f"{self.source}@"
        received = root | "Pub/Sub" >> ReadFromPubSub(with_attributes=True, **place)
        return received | "Message" >> beam.Map(_from_beam, position).with_output_types(BrokerMessage)

    def _pulled(self, root: Any) -> Any:
        subscription = self.source
        if self.source.is_topic:
            subscription = PubSubAddress(self.source.project, "subscriptions", self._own_name)
        readers = partial(_readers, self.source, self._num_readers, self._written)
        return spread(root, subscription, readers, _Read, self._drain)

    def display_data(self) -> dict[str, Any]:
        return {"source": DisplayDataItem(str(self.source), label="Source")}


def _from_beam(received: PubsubMessage, position: str) -> BrokerMessage:
    return BrokerMessage(received.data or b"", dict(received.attributes or {}), f"{position}{received.message_id}")


def _readers(
    source: PubSubAddress, count: int, outputs: Mapping[str, str], subscription: PubSubAddress
) -> Iterable[Reader]:
    """The readers, once there is a subscription. Raises ConfigError where there is none, or no topic."""
    with client_of(source, SubscriberClient) as client, said_of(source):
        try:
            if source.is_topic:
                _subscribe(client, source, subscription)
            else:
                _check_topic(source, client.get_subscription(subscription=subscription.path).topic, outputs)
        except exceptions.InvalidArgument as error:
            raise ConfigError(f"{source}: {error.message}") from None
    return [Reader(number) for number in range(count)]


def _check_topic(subscription: PubSubAddress, topic: str, outputs: Mapping[str, str]) -> None:
    if topic in outputs:
        raise ConfigError(
            f"{outputs[topic]} pubsub:{topic}: is the topic of --input {subscription}, so the job would answer what "
            "it sends there"
        )


def _subscribe(client: SubscriberClient, topic: PubSubAddress, subscription: PubSubAddress) -> None:
    wanted = {
        "name": subscription.path,
        "topic": topic.path,
        "ack_deadline_seconds": LEASE_SECONDS,
        "expiration_policy": {"ttl": _UNUSED},
    }
    try:
        client.create_subscription(request=wanted)
    except exceptions.AlreadyExists:
        _log.info("%s is there: this is a repeated start", subscription)


class _Read(ReaderDoFn[PubSubAddress, Subscription]):
    def connect(self) -> Subscription:
        return Subscription(self._address, late=self._late)

    def setup(self) -> None:
        self._lock = threading.Lock()
        self._uncommitted: set[str] = set()
        self._gives_back = False
        super().setup()

    def read(self, _reader: Reader, turn: ReadingTurn, tracker: PositionTracker, times: StreamTime) -> ReadSteps:
        seen, taken = self._connection.finals.seen(), list[str]()
        position = tracker.current_restriction().start
        for batch in self._batches(turn):
            ids = [received.ack_id for received in batch]
            position += len(batch)
            if not (self._take(ids) and tracker.try_claim(position - 1)):
                self._connection.give_back(ids)
                break
            taken += ids
            for received in batch:
                yield TimestampedValue(
                    self._message(received.message), times.of(received.message.publish_time.timestamp())
                )
        if not taken:
            times.idle()
        return partial(self._committed, seen, taken) if taken or seen or self._connection.owes else None

    def teardown(self) -> None:
        """Whatever was not committed by now will not be: others may have it at once."""
        self.give_back()

    def give_back(self) -> None:
        with self._lock:
            self._gives_back = True
            uncommitted, self._uncommitted = self._uncommitted, set()
        self._connection.give_back(uncommitted)

    def _take(self, ids: list[str]) -> bool:
        with self._lock:
            self._uncommitted.update(ids)
            return not self._gives_back

    def _batches(self, turn: ReadingTurn) -> Iterator[list[Any]]:
        """Messages until the turn is over or there are no more; waits a moment for the first."""
        full = True
        while full and not turn.is_over:
            batch = self._connection.pull(_PULL_MESSAGES, _PULL_SECONDS)
            turn.took(len(batch))
            full = len(batch) == _PULL_MESSAGES
            if batch:
                yield batch

    def _message(self, message: Any) -> BrokerMessage:
        position = f"{self._address}@{message.message_id}"
        return BrokerMessage(bytes(message.data), dict(message.attributes), position)

    def _committed(self, seen: list[str], taken: list[str]) -> None:
        with self._lock:
            self._uncommitted.difference_update(taken)
        self._connection.finals.on_final(seen, taken)
