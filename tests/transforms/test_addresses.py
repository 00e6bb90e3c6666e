import pickle
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.addresses import Address, Files, KafkaTopic, PubSubAddress, WatchedFiles, parse


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a/*.jsonl", Files("a/*.jsonl")),
        ("gs://bucket/a.jsonl.gz", Files("gs://bucket/a.jsonl.gz")),
        ("watch:s3://bucket/*", WatchedFiles("s3://bucket/*")),
        ("kafka:one:9092/t", KafkaTopic(brokers="one:9092", topic="t")),
        (
            "kafka:one:9092,[::1]:9093/my.topic-1?group=mine&begin=latest&properties=/etc/client",
            KafkaTopic(
                brokers="one:9092,[::1]:9093",
                topic="my.topic-1",
                group="mine",
                begin="latest",
                properties="/etc/client",
            ),
        ),
        ("pubsub:projects/p/topics/prompts", PubSubAddress("p", "topics", "prompts")),
        ("pubsub:projects/p/subscriptions/prompts", PubSubAddress("p", "subscriptions", "prompts")),
    ],
)
def test_an_address_names_what_it_is_and_is_told_as_it_was_given(text: str, address: Address) -> None:
    assert parse(text) == address
    assert type(parse(text)) is type(address)
    assert str(address) == text
    assert str(pickle.loads(pickle.dumps(parse(text)))) == text


@pytest.mark.parametrize(
    ("text", "can"),
    [
        ("a/*.jsonl", {"takes_results", "is_local"}),
        ("gs://bucket/a", {"takes_results"}),
        ("watch:a/*", {"is_stream", "is_local"}),
        ("watch:gs://bucket/*", {"is_stream"}),
        ("kafka:one:9092/t", {"is_stream", "is_broker", "takes_results"}),
        ("pubsub:projects/p/topics/prompts", {"is_stream", "is_broker", "takes_results"}),
        ("pubsub:projects/p/subscriptions/prompts", {"is_stream", "is_broker"}),
    ],
)
def test_an_address_says_what_it_can_do(text: str, can: set[str]) -> None:
    address = parse(text)
    assert {name for name in ("is_stream", "is_broker", "takes_results", "is_local") if getattr(address, name)} == can


def test_local_files_are_made_absolute_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ("in/*.jsonl", "watch:in/*", "gs://b/a", "kafka:one:9092/t")
    absolute = [f"{tmp_path}/in/*.jsonl", f"watch:{tmp_path}/in/*", "gs://b/a", "kafka:one:9092/t"]
    assert [str(parse(text).absolute()) for text in texts] == absolute


@pytest.mark.parametrize(
    "text", ["kafka:broker/t", "kafka:one:9092", "kafka:one:9092/t?groop=x", "kafka:one:0/t", "pubsub:prompts"]
)
def test_a_brokers_address_that_is_none_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse(text)
    assert str(told.value).startswith(f"{text}: takes {text.partition(':')[0]}:")
