from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.streams.kafka import KafkaTopic


def test_an_address_names_brokers_topic_and_group() -> None:
    topic = KafkaTopic.parse("kafka:one:9092,[::1]:9093/my.topic-1?group=mine&begin=latest")
    assert topic == KafkaTopic(brokers="one:9092,[::1]:9093", topic="my.topic-1", group="mine", begin="latest")
    assert str(topic) == "kafka:one:9092,[::1]:9093/my.topic-1"
    assert KafkaTopic.parse("kafka:one:9092/t") == KafkaTopic(brokers="one:9092", topic="t")


def test_further_settings_are_read_from_a_file_where_they_are_used(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# secret\nsecurity.protocol = SASL_SSL\n\nsasl.password=a=b\n")
    settings = KafkaTopic.parse(f"kafka:one:9092/t?properties={path}").client(**{"linger.ms": 5})
    assert settings["bootstrap.servers"] == "one:9092"
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.password"] == "a=b"
    assert settings["linger.ms"] == 5


def test_a_file_of_settings_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"properties=/none: No such file"):
        KafkaTopic.parse("kafka:one:9092/t?properties=/none").client()
