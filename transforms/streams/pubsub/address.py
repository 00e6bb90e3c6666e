"""A Pub/Sub subscription's or topic's address, and who reads and writes it."""

from __future__ import annotations

import re
from typing import Any, Self

import msgspec
from apache_beam.options.pipeline_options import StandardOptions

from millrace.model_manager.wire.errors import ConfigError, MillraceError

SCHEME = "pubsub:"
_ADDRESS = re.compile(r"projects/(?P<project>[^/]+)/(?P<kind>topics|subscriptions)/(?P<name>[A-Za-z][\w.~+%-]{2,254})")


class PubSubFailed(MillraceError):
    """Pub/Sub refused what it was asked to do; the runner decides whether to try again."""


class PubSubAddress(msgspec.Struct, frozen=True):
    """A subscription or a topic."""

    project: str
    kind: str
    name: str

    @classmethod
    def parse(cls, address: str) -> Self:
        """Of `pubsub:projects/P/subscriptions/S` or `pubsub:projects/P/topics/T`; raises ConfigError."""
        found = _ADDRESS.fullmatch(address.removeprefix(SCHEME))
        if found is None:
            raise ConfigError(f"{address}: takes pubsub:projects/P/subscriptions/S or pubsub:projects/P/topics/T")
        return cls(**found.groupdict())

    @property
    def is_topic(self) -> bool:
        """Or else a subscription."""
        return self.kind == "topics"

    @property
    def path(self) -> str:
        """As Pub/Sub names it."""
        return f"projects/{self.project}/{self.kind}/{self.name}"

    def __str__(self) -> str:
        return f"{SCHEME}{self.path}"


def is_dataflow(collection: Any) -> bool:
    """Whether the service itself is to read and write."""
    runner = collection.pipeline.options.view_as(StandardOptions).runner or ""
    return runner.rsplit(".", 1)[-1] in ("DataflowRunner", "TestDataflowRunner")
