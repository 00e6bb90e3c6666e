from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.addresses import KafkaTopic
from millrace.transforms.streams.kafka.connection import client_settings


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
