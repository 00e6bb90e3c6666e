"""How calls reach servers: over HTTP (`over_http.py`) or gRPC (`over_grpc.py`), by the scheme of the URLs.

Knows no dialect.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from ...wire.endpoint_options import EndpointOptions
from .dialects import Call
from .judging import Reply
from .over_http import HttpConnections


class Connections(Protocol):
    """Connections to all servers; an async context manager that owns them. Each call is tried once."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def send(self, base: str, call: Call, take: Callable[[bytes], None] | None = None) -> Reply:
        """What a server replies to a request; raises TryFailed if no whole reply comes. `take` gets the data of each
        event as it comes, if the reply is a stream, which leaves its body empty.
        """

    async def probe(self, base: str, call: Call) -> Reply:
        """What it replies to a question about itself, in the time that a connection may take."""


def connections(options: EndpointOptions, key: str) -> Connections:
    """Connections that send `key` with each call, if there is one, and show it in no error."""
    if options.over_grpc:
        from .over_grpc import GrpcConnections  # imports grpc, which HTTP does without

        return GrpcConnections(options, key)
    return HttpConnections(options, key)
