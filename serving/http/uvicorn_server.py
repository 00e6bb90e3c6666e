"""uvicorn as our servers use it: it owns the connections, and leaves signals and the socket to us."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from .http_connection import HttpConnection
from .listen_addresses import BACKLOG

_KEEP_ALIVE = 75
"""Seconds that a connection without a request stays open."""


class Uvicorn(uvicorn.Server):
    """Leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn."""
        yield

    def end(self) -> None:
        """Take no connection and no request from now on, and end once those that run are answered."""
        self.should_exit = True
        for server in self.servers if self.started else ():
            server.close()
        for connection in self.server_state.connections:
            connection.shutdown()

    def refuse_unread(self) -> None:
        """Wait no more for bodies of requests, after `end`."""
        for connection in [*self.server_state.connections]:
            assert isinstance(connection, HttpConnection), "uvicorn_config says so"
            connection.refuse_unread()


def uvicorn_config(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """Settings of every server of ours; `more` by uvicorn's names."""
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=HttpConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        **more,
    )
