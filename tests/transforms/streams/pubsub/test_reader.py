"""A reader's questions before it reads, to a client with given answers."""

from types import SimpleNamespace
from typing import Any, Self

import pytest
from google.api_core.exceptions import Forbidden, NotFound

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.addresses import PubSubAddress
from millrace.transforms.streams.pubsub import reader as pubsub_reader
from millrace.transforms.streams.pubsub.reader import ReadPubSub, _readers
from millrace.transforms.streams.pubsub.writer import _Publish
from millrace.transforms.streams.readers import Reader

SUBSCRIPTION = PubSubAddress("p", "subscriptions", "prompts")
TOPIC = PubSubAddress("p", "topics", "prompts")


class Client:
    """A SubscriberClient that knows one subscription, of the topic `prompts`, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def get_subscription(self, subscription: str) -> Any:
        if self._error is not None:
            raise self._error
        assert subscription == SUBSCRIPTION.path
        return SimpleNamespace(topic=TOPIC.path)

    def create_subscription(self, request: Any) -> None:
        assert request["topic"] == TOPIC.path
        assert self._error is not None
        raise self._error


def read(monkeypatch: pytest.MonkeyPatch, client: Client, outputs: dict[str, str], source: PubSubAddress) -> Any:
    monkeypatch.setattr(pubsub_reader, "SubscriberClient", lambda: client)
    return _readers(source, 2, outputs, SUBSCRIPTION)


def test_a_subscription_of_a_topic_that_the_job_writes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"projects/p/topics/answers": "--output"}
    assert read(monkeypatch, Client(), answers, SUBSCRIPTION) == [Reader(0), Reader(1)]
    told = f"--dead_letters {TOPIC}: is the topic of --input {SUBSCRIPTION}"
    with pytest.raises(ConfigError, match=told):
        read(monkeypatch, Client(), answers | {TOPIC.path: "--dead_letters"}, SUBSCRIPTION)


@pytest.mark.parametrize(
    ("error", "source", "told"),
    [
        (NotFound("subscription"), SUBSCRIPTION, f"{SUBSCRIPTION}: not found: there is no such subscription"),  # type: ignore[no-untyped-call, unused-ignore]
        (NotFound("topic"), TOPIC, f"{TOPIC}: not found: there is no such topic"),  # type: ignore[no-untyped-call, unused-ignore]
        (Forbidden("you may not"), SUBSCRIPTION, f"{SUBSCRIPTION}: you may not"),  # type: ignore[no-untyped-call, unused-ignore]
    ],
)
def test_what_pubsub_does_not_have_or_allow_is_one_sentence(
    error: Exception, source: PubSubAddress, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(monkeypatch, Client(error), {}, source)
    assert str(caught.value) == told


def test_without_credentials_the_ways_to_name_some_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file.json")
    ways = "credentials .*GOOGLE_APPLICATION_CREDENTIALS.*PUBSUB_EMULATOR_HOST"
    with pytest.raises(ConfigError, match=f"^{SUBSCRIPTION}: .*{ways}"):
        _readers(SUBSCRIPTION, 2, {}, SUBSCRIPTION)
    with pytest.raises(ConfigError, match=f"^{TOPIC}: .*{ways}"):
        _Publish(TOPIC, gives_letters=False).setup()


def test_a_reader_knows_what_its_job_writes() -> None:
    assert ReadPubSub(str(SUBSCRIPTION), outputs={TOPIC.path: "--output"})._written == {TOPIC.path: "--output"}
