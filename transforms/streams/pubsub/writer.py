"""Results and dead letters → messages of a Pub/Sub topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub
from google.cloud.pubsub_v1 import PublisherClient
from google.cloud.pubsub_v1.types import LimitExceededBehavior, PublisherOptions, PublishFlowControl

from millrace.model_manager.wire.errors import ConfigError

from ...addresses import PubSubAddress
from ...elements.completions import DEAD_LETTERS, DeadLetter
from ...runners import runner_of
from ..broker_messages import Element, Outgoing, SendDoFn, WriteMessages, outgoing, too_large
from .connection import PubSubFailed, client_of, said_of

_SEND_SECONDS = 300.0
_MAX_BYTES = 9_500_000
"""Largest payload; a request with a message has at most 10 MB."""
_MAX_ATTRIBUTE_BYTES = 1024


class WritePubSub(WriteMessages):
    """As WriteMessages, with the attributes `id` and `kind`."""

    def __init__(self, topic: str | PubSubAddress) -> None:
        """`topic`: an address, `pubsub:projects/P/topics/T`."""
        super().__init__(PubSubAddress.parse(topic) if isinstance(topic, str) else topic)
        if not self.topic.is_topic:
            raise ConfigError(f"{self.topic}: takes a topic to write to, pubsub:projects/P/topics/T")

    def expand(self, elements: Any) -> Any:
        if not runner_of(elements.pipeline.options).has_pubsub:
            return self._sent(elements, _Publish(self.topic, gives_letters=self._gives_letters))
        to_beam = _ToBeam(gives_letters=self._gives_letters)
        fitting = elements | "Message" >> beam.ParDo(to_beam).with_outputs(DEAD_LETTERS, main="messages")
        fitting.messages.element_type, fitting[DEAD_LETTERS].element_type = PubsubMessage, DeadLetter
        fitting.messages | "Pub/Sub" >> WriteToPubSub(self.topic.path, with_attributes=True)
        return fitting[DEAD_LETTERS]


def _fitting(element: Element, *, gives_letters: bool) -> Outgoing | DeadLetter:
    """Its message, or if it is too large the letter that says so, or the message of that."""
    message = _message(element)
    if len(message.data) <= _MAX_BYTES:
        return message
    letter = too_large(element.id, len(message.data))
    return letter if gives_letters else _message(letter)


def _message(element: Element) -> Outgoing:
    message = outgoing(element)
    kept = {name: value for name, value in message.attributes.items() if len(value.encode()) <= _MAX_ATTRIBUTE_BYTES}
    return message._replace(attributes=kept)


class _ToBeam(beam.DoFn):
    """Elements → Beam's messages, and dead letters for elements that are too large."""

    def __init__(self, *, gives_letters: bool) -> None:
        self._gives_letters = gives_letters

    def process(self, element: Element) -> Iterator[Any]:
        fitting = _fitting(element, gives_letters=self._gives_letters)
        if isinstance(fitting, DeadLetter):
            yield beam.pvalue.TaggedOutput(DEAD_LETTERS, fitting)
        else:
            yield PubsubMessage(fitting.data, fitting.attributes)


class _Publish(SendDoFn[PubSubAddress, "_Publisher"]):
    def connect(self) -> _Publisher:
        return client_of(self._address, _Publisher)

    def start_bundle(self) -> None:
        self._outcomes: list[Any] = []

    def process(self, element: Element) -> Iterator[DeadLetter]:
        fitting = _fitting(element, gives_letters=self._gives_letters)
        if isinstance(fitting, DeadLetter):
            yield fitting
            return
        future = self._connection.client.publish(self._address.path, fitting.data, **fitting.attributes)
        self._outcomes.append(future)

    def finish_bundle(self) -> None:
        for future in self._outcomes:
            try:
                with said_of(self._address):
                    future.result(timeout=_SEND_SECONDS)
            except ConfigError:
                raise
            except Exception as error:
                raise PubSubFailed(f"{self._address}: {error}") from error


class _Publisher:
    """The publisher of this process; `publish` waits where too much is on its way."""

    def __init__(self) -> None:
        limit = PublishFlowControl(
            message_limit=1000, byte_limit=64 * 2**20, limit_exceeded_behavior=LimitExceededBehavior.BLOCK
        )
        self.client = PublisherClient(publisher_options=PublisherOptions(flow_control=limit))
