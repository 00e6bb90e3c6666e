"""Results and dead letters → messages of a Kafka topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue
from confluent_kafka import KafkaError, KafkaException, Producer

from ...addresses import KafkaTopic
from ...elements.completions import DeadLetter
from ..broker_messages import Element, Outgoing, SendDoFn, WriteMessages, outgoing, too_large
from .connection import KafkaFailed, client_settings


class WriteKafka(WriteMessages):
    """Writes to Kafka. A message's key is its row's id. The producer is idempotent: a retry writes nothing twice."""

    def __init__(self, topic: str | KafkaTopic) -> None:
        """`topic`: an address, `kafka:HOST:PORT/TOPIC`."""
        super().__init__(KafkaTopic.parse(topic) if isinstance(topic, str) else topic)

    def expand(self, elements: Any) -> Any:
        return self._sent(elements, _Send(self.topic, gives_letters=self._gives_letters))


class _Sent(NamedTuple):
    """A message on its way."""

    message: Outgoing
    place: WindowedValue
    """Timestamp, windows and pane of the element that became the message; the value is left out."""


Outcomes = list[tuple[KafkaError | None, _Sent | None]]
"""For each message that was sent: the error and the message, or None twice where it is delivered."""


class _Send(SendDoFn[KafkaTopic, "_Sender"]):
    def connect(self) -> _Sender:
        return _Sender(self._address)

    def start_bundle(self) -> None:
        self._sent = 0
        self._outcomes: Outcomes = []

    def process(self, element: Element, windowed: Any = beam.DoFn.WindowedValueParam) -> Iterator[DeadLetter]:
        sent = _Sent(outgoing(element), windowed.with_value(None))
        try:
            self._send(sent)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise KafkaFailed(f"{self._address}: {error.args[0].str()}") from None
            yield from self._letter_of(sent)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for sent in self._refused():
            self._send(sent)  # alone: a broker refuses whole batches
            if self._refused():
                yield from map(sent.place.with_value, self._letter_of(sent))
                if self._refused():
                    raise KafkaFailed(f"{self._address}: takes not even the dead letter of {sent.message.key}")

    def _letter_of(self, sent: _Sent) -> Iterator[DeadLetter]:
        """Give or send the dead letter of a message that is too large."""
        letter = too_large(sent.message.key, len(sent.message.data))
        if self._gives_letters:
            yield letter
        else:
            self._send(_Sent(outgoing(letter), sent.place))

    def _send(self, sent: _Sent) -> None:
        self._connection.send(sent, self._outcomes)
        self._sent += 1

    def _refused(self) -> list[_Sent]:
        """The messages that the broker finds too large, once everything is sent."""
        while len(self._outcomes) < self._sent:
            self._connection.poll(0.1)
        outcomes, self._outcomes, self._sent = self._outcomes, [], 0
        for error, _ in outcomes:
            if error is not None and error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise KafkaFailed(f"{self._address}: {error.str()}")
        return [sent for _, sent in outcomes if sent is not None]


class _Sender:
    """The producer of this process."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic.topic
        self._producer = Producer(client_settings(topic, **{"enable.idempotence": True, "linger.ms": 5}))

    def send(self, sent: _Sent, outcomes: Outcomes) -> None:
        """Waits where librdkafka's queue is full; each outcome is appended later."""
        message = sent.message
        headers: dict[str, str | bytes | None] = dict(message.attributes)
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    message.data,
                    message.key.encode("utf-8", "surrogatepass"),
                    headers=headers,
                    on_delivery=lambda error, _: outcomes.append((error, sent if error is not None else None)),
                )
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def poll(self, seconds: float) -> None:
        """Learn of outcomes."""
        self._producer.poll(seconds)
