import threading
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.addresses import KafkaTopic
from millrace.transforms.streams.kafka.connection import PartitionReader, client_settings


def test_further_settings_are_read_from_a_file_where_they_are_used(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# secret\nsecurity.protocol = SASL_SSL\n\nsasl.password=a=b\n")
    settings = client_settings(KafkaTopic.parse(f"kafka:one:9092/t?properties={path}"), **{"linger.ms": 5})
    assert settings["bootstrap.servers"] == "one:9092"
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.password"] == "a=b"
    assert settings["linger.ms"] == 5


def test_a_file_of_settings_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"properties=/none: No such file"):
        client_settings(KafkaTopic.parse("kafka:one:9092/t?properties=/none"))


class Client:
    """A consumer that another thread closes during its commit."""

    def __init__(self, reader: PartitionReader) -> None:
        self.calls: list[str] = []
        self.closer = threading.Thread(target=reader.close)

    def commit(self, **_: object) -> None:
        self.calls.append("commit begins")
        self.closer.start()
        self.closer.join(0.1)  # it ends here only if it does not wait for this call
        self.calls.append("commit ends")

    def close(self) -> None:
        self.calls.append("close")


def test_a_reader_is_closed_after_its_commit_and_commits_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PartitionReader(KafkaTopic.parse("kafka:localhost:1/t"), 0)
    reader._consumer.close()
    client = Client(reader)
    monkeypatch.setattr(reader, "_consumer", client)
    reader._commit([5])
    client.closer.join()
    assert client.calls == ["commit begins", "commit ends", "close"]
    reader._commit([6])
    assert client.calls[-1] == "close"
