"""Addresses of prompts and of results. An address is parsed once, into what it names:

    prompts/*.jsonl, gs://bucket/prompts.jsonl.gz      Files
    watch:inbox/*.jsonl                                WatchedFiles
    kafka:HOST:PORT/TOPIC                              KafkaTopic
    pubsub:projects/P/subscriptions/S (or topics/T)    PubSubAddress

Each kind says what it can do: `is_stream` (its input has no end), `is_broker` (messages, not files), `takes_results`,
`is_local` (this machine alone has it). `str()` gives the address again. Knows no client of any broker.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast, get_args
from urllib.parse import parse_qsl, urlencode

import msgspec

from millrace.model_manager.wire.errors import ConfigError

from .files.file_systems import check_scheme
from .files.object_stores import scheme_of

_WATCH, _KAFKA, _PUBSUB = "watch:", "kafka:", "pubsub:"


def parse(address: str) -> Address:
    """Raises ConfigError for an address that begins as a broker's and is not one, and for a path of no file system."""
    if address.startswith(_KAFKA):
        return KafkaTopic.parse(address)
    if address.startswith(_PUBSUB):
        return PubSubAddress.parse(address)
    path = address.removeprefix(_WATCH)
    if path != address and not path:
        raise ConfigError(f"{address}: takes watch:GLOB, such as watch:inbox/*.jsonl")
    check_scheme(path)
    return Files(path) if path == address else WatchedFiles(path)


class Files(msgspec.Struct, frozen=True):
    """Files, local or in an object store: a path, a glob or, as an output, the beginning of the files' paths."""

    path: str

    is_stream: ClassVar[bool] = False
    is_broker: ClassVar[bool] = False
    takes_results: ClassVar[bool] = True

    @property
    def is_local(self) -> bool:
        """Whether the path has no scheme such as `gs://`."""
        return self.scheme is None

    @property
    def scheme(self) -> str | None:
        """`gs` of `gs://bucket/file`; None for a path of this machine."""
        return scheme_of(self.path)

    def absolute(self) -> Self:
        """The same files for a process that starts in another folder."""
        return msgspec.structs.replace(self, path=str(Path.cwd() / self.path)) if self.is_local else self

    def __str__(self) -> str:
        return self.path


class WatchedFiles(Files, frozen=True):
    """The files that match a glob, and those that come."""

    is_stream: ClassVar[bool] = True
    takes_results: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"{_WATCH}{self.path}"


class _BrokerAddress(msgspec.Struct, frozen=True, kw_only=True):
    is_stream: ClassVar[bool] = True
    is_broker: ClassVar[bool] = True
    is_local: ClassVar[bool] = False

    def absolute(self) -> Self:
        return self


# ── Kafka ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_KAFKA_FORM = (
    "takes kafka:HOST:PORT[,HOST:PORT]/TOPIC[?group=NAME&begin=earliest|latest&properties=FILE], ports of 1 to 65535"
)
_BROKER = r"(?:\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}"
_BROKERS = re.compile(rf"{_BROKER}(?:,{_BROKER})*")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")
_KAFKA_SETTINGS = ("group", "begin", "properties")
Begin = Literal["earliest", "latest"]


class KafkaTopic(_BrokerAddress, frozen=True, kw_only=True):
    """A topic, how to reach it, and who reads it."""

    brokers: str
    topic: str
    group: str = "millrace"
    """The consumer group whose offsets say where to begin."""
    begin: Begin = "earliest"
    """Where the group begins that has no offsets yet."""
    properties: str = ""
    """A file on the workers with further settings of librdkafka's, `name=value` lines: security, above all."""

    takes_results: ClassVar[bool] = True

    @classmethod
    def parse(cls, address: str) -> Self:
        """Read `kafka:HOST:PORT[,HOST:PORT]/TOPIC[?…]`. Raises ConfigError."""
        place, _, query = address.removeprefix(_KAFKA).partition("?")
        brokers, _, topic = place.partition("/")
        settings = dict(parse_qsl(query, keep_blank_values=True))
        ports = [int(port) for port in re.findall(r":(\d+)(?:,|$)", brokers)]
        is_valid = (
            _BROKERS.fullmatch(brokers)
            and all(0 < port < 2**16 for port in ports)
            and _TOPIC.fullmatch(topic)
            and all(settings.values())
        )
        unknown = settings.keys() - set(_KAFKA_SETTINGS)
        if not is_valid or unknown or settings.get("begin", "earliest") not in get_args(Begin):
            raise ConfigError(f"{address}: {_KAFKA_FORM}")
        return cls(brokers=brokers, topic=topic, **cast(dict[str, Any], settings))

    def is_same_topic(self, other: object) -> bool:
        """Whether both name one topic of one cluster, by the names of the brokers."""
        return isinstance(other, KafkaTopic) and self.topic == other.topic and bool(self._hosts() & other._hosts())

    def _hosts(self) -> set[tuple[str, int]]:
        pairs = [broker.lower().rpartition(":") for broker in self.brokers.split(",")]
        return {("localhost" if host in _THIS_MACHINE else host, int(port)) for host, _, port in pairs}

    def __str__(self) -> str:
        settings = {each.name: (getattr(self, each.name), each.default) for each in msgspec.structs.fields(self)}
        query = {name: settings[name][0] for name in _KAFKA_SETTINGS if settings[name][0] != settings[name][1]}
        return f"{_KAFKA}{self.brokers}/{self.topic}{'?' if query else ''}" + urlencode(query, safe="/")


# ── Pub/Sub ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_PATH = re.compile(r"projects/(?P<project>[^/]+)/(?P<kind>topics|subscriptions)/(?P<name>[A-Za-z][\w.~+%-]{2,254})")


class PubSubAddress(_BrokerAddress, frozen=True):
    """A subscription or a topic."""

    project: str
    kind: str
    name: str

    @classmethod
    def parse(cls, address: str) -> Self:
        """Read `pubsub:projects/P/subscriptions/S` or `pubsub:projects/P/topics/T`. Raises ConfigError."""
        found = _PATH.fullmatch(address.removeprefix(_PUBSUB))
        if found is None:
            raise ConfigError(f"{address}: takes pubsub:projects/P/subscriptions/S or pubsub:projects/P/topics/T")
        return cls(**found.groupdict())

    @property
    def is_topic(self) -> bool:
        """True for a topic, False for a subscription."""
        return self.kind == "topics"

    @property
    def takes_results(self) -> bool:
        """Whether results can go here: only to a topic."""
        return self.is_topic

    def is_same_topic(self, other: object) -> bool:
        """Whether both are one address. Which topic a subscription has, its reader asks Pub/Sub."""
        return self == other

    @property
    def path(self) -> str:
        """The path as Pub/Sub names it."""
        return f"projects/{self.project}/{self.kind}/{self.name}"

    def __str__(self) -> str:
        return f"{_PUBSUB}{self.path}"


Address: TypeAlias = Files | WatchedFiles | KafkaTopic | PubSubAddress
