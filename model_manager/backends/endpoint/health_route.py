"""The health route of a server that millrace started: it may say what no route of the server's dialect says."""

from __future__ import annotations

from .dialects import Call
from .judging import TryFailed, is_healthy
from .over_http import HttpConnections


class HealthRoute:
    """One server's; asked over HTTP whatever requests go over."""

    def __init__(self, connections: HttpConnections, url: str) -> None:
        """`url`: of the server, with the route."""
        self._connections = connections
        self._url = url

    async def is_healthy(self) -> bool:
        """Whether it answers in the time that a connection may take, and not with 5xx."""
        try:
            reply = await self._connections.probe(self._url, Call(""))
        except TryFailed:
            return False
        return is_healthy(reply.status)
