"""The settings with which every Kafka client is made, and the error of a broker."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from millrace.model_manager.wire.errors import ConfigError, MillraceError

from ...addresses import KafkaTopic

_log_of_librdkafka = logging.getLogger("librdkafka")


class KafkaFailed(MillraceError):
    """A broker refused or lost what it was asked to do; the runner decides whether to try again."""


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
        raise ConfigError(f"properties={path}: {error.strerror}") from None
    pairs = [line.partition("=") for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {name.strip(): value.strip() for name, _, value in pairs}
