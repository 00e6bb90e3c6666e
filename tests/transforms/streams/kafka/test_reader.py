import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.addresses import KafkaTopic
from millrace.transforms.streams.kafka import reader as kafka_reader
from millrace.transforms.streams.kafka.reader import partitions_of
from tests.servers.processes import free_port


def test_a_broker_that_is_not_there_is_told_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_reader, "_CONNECT_SECONDS", 0.5)
    brokers = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=rf"^kafka:{brokers}/prompts: cannot connect to {brokers} \("):
        partitions_of(KafkaTopic.parse(f"kafka:{brokers}/prompts"))
