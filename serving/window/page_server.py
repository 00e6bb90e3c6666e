"""The page beside any job, without a model to ask: `millrace top --web`. It listens on the loopback alone."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

import uvloop
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from millrace.model_manager.client.status import ReadStatus

from ..http.browsers import BrowserCheck
from ..http.listen_addresses import listening, url
from ..http.uvicorn_server import Uvicorn, uvicorn_config
from ..metrics.snapshot import snapshot
from .feed import Feed
from .figures import figures
from .page import page_routes
from .shared_frames import Watching

_HOST = "127.0.0.1"
_STALL_TIMEOUT = 60.0
_END_WITHIN = 5


def serve_page(port: int, tell: Callable[[str], None], read: ReadStatus) -> None:
    """Serve until a signal comes; `tell` is given the URL. Raises ConfigError for a port that cannot be had."""
    with listening(_HOST, port) as sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sock, tell, read))


async def _serve(sock: socket.socket, tell: Callable[[str], None], read: ReadStatus) -> None:
    watching = Watching(lambda: figures(snapshot(read)))
    server = Uvicorn(uvicorn_config(_app(watching), timeout_graceful_shutdown=_END_WITHIN))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _end, server, watching)
    tell(url(sock))
    await server.serve(sockets=[sock])


def _end(server: Uvicorn, watching: Watching) -> None:
    watching.end()
    server.end()


def _app(watching: Watching) -> Starlette:
    events = Route("/events", Feed(watching, _STALL_TIMEOUT), methods=["GET"])
    return Starlette(routes=[events, *page_routes()], middleware=[Middleware(BrowserCheck)])
