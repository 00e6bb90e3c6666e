"""A Kafka topic's address, and the settings with which every client of it is made."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args
from urllib.parse import parse_qsl

import msgspec

from millrace.model_manager.wire.errors import ConfigError, MillraceError

SCHEME = "kafka:"
Begin = Literal["earliest", "latest"]
_FORM = "takes kafka:HOST:PORT[,HOST:PORT]/TOPIC[?group=NAME&begin=earliest|latest&properties=FILE]"
_BROKERS = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}(?:,(?:\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5})*")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_log_of_librdkafka = logging.getLogger("librdkafka")


class KafkaFailed(MillraceError):
    """A broker refused or lost what it was asked to do; the runner decides whether to try again."""


class KafkaTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, how to reach it, and who reads it."""

    brokers: str
    topic: str
    group: str = "millrace"
    """The consumer group whose offsets say where to begin."""
    begin: Begin = "earliest"
    """Where the group begins that has no offsets yet."""
    properties: str = ""
    """A file on the workers with further settings of librdkafka's, `name=value` lines: security, above all."""

    @classmethod
    def parse(cls, address: str) -> Self:
        """Of `kafka:HOST:PORT[,HOST:PORT]/TOPIC[?…]`; raises ConfigError."""
        place, _, query = address.removeprefix(SCHEME).partition("?")
        brokers, _, topic = place.partition("/")
        if not _BROKERS.fullmatch(brokers) or not _TOPIC.fullmatch(topic):
            raise ConfigError(f"{address}: {_FORM}")
        settings = dict(parse_qsl(query, keep_blank_values=True))
        unknown = sorted(settings.keys() - {"group", "begin", "properties"})
        if unknown or settings.get("begin", "earliest") not in get_args(Begin) or not all(settings.values()):
            raise ConfigError(f"{address}: {_FORM}")
        return cls(brokers=brokers, topic=topic, **cast(dict[str, Any], settings))

    def __str__(self) -> str:
        return f"{SCHEME}{self.brokers}/{self.topic}"

    def client(self, **settings: Any) -> dict[str, Any]:
        """Settings of a client. Raises ConfigError for a file of properties that cannot be read."""
        return {
            "bootstrap.servers": self.brokers,
            "logger": _log_of_librdkafka,
            **_properties(self.properties),
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
