"""Starts a listening process from settings, and ends it: a signal lets running requests finish within a limit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import uvicorn
import uvloop

from millrace.model_manager.client.engine_client import EngineClient

from .app import make_app
from .batches.served_batches import BatchRunner
from .http.http_connection import allow_connections
from .http.listen_addresses import listening, url
from .http.observers import Observer
from .http.tls_files import check_tls
from .http.uvicorn_server import Uvicorn, uvicorn_config
from .requests.opening_client import EngineOpener, OpeningClient
from .requests.service import Served, Service
from .settings import ServeConfig

_AFTER_CANCEL = 5.0
"""Seconds for cancelled requests to tell their clients so."""
_KILLED = 130
"""Exit status after a second signal."""
_BETWEEN_COLLECTIONS = 10_000
"""Objects that a young collection of garbage waits for. By default one starts every few requests."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end it; a terminal sends the last one as it closes."""

Tell = Callable[[str], None]
"""Prints a line for the user."""


def serve(
    settings: ServeConfig, served: Served, opener: EngineOpener, tell: Tell, observers: Sequence[Observer] = ()
) -> None:
    """Serve until a signal comes. Raises ConfigError for an address that cannot be had or a bad file, and ModelError
    where the model cannot be loaded.
    """
    with listening(settings.host, settings.port) as sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Serving(settings, tell).run(sock, served, opener, observers))


class _Serving:
    """One run of the server, in its event loop."""

    def __init__(self, settings: ServeConfig, tell: Tell) -> None:
        self._settings = settings
        self._tell = tell
        self._error: BaseException | None = None
        self._is_ending = False

    async def run(
        self, sock: socket.socket, served: Served, opener: EngineOpener, observers: Sequence[Observer]
    ) -> None:
        """Listen, load the model meanwhile, and serve until the end."""
        engine = OpeningClient(opener)
        service = Service(self._settings, served, engine, observers)
        batches = BatchRunner(service)
        try:
            server = Uvicorn(self._config(service, batches))
            self._watch(server, service)
            self._tell(f"serving {served.model} at {self._url(sock)}; the model is being loaded")
            allow_connections()
            engine.start()
            batches.start()
            await server.serve(sockets=[sock])
        finally:
            service.constraints.close()
            await batches.close()
            await asyncio.to_thread(service.close)
        if self._error is not None:
            raise self._error

    def _watch(self, server: Uvicorn, service: Service) -> None:
        """Notice signals, and what becomes of the model."""
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_IGN:  # nohup's choice
                continue
            loop.add_signal_handler(number, self._on_signal, server, service)

        def opened(client: Future[EngineClient]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._opened, client, server, service)

        service.engine.opened.add_done_callback(opened)

    def _config(self, service: Service, batches: BatchRunner) -> uvicorn.Config:
        check_tls(self._settings.ssl_certfile, self._settings.ssl_keyfile)
        config = uvicorn_config(
            make_app(service, batches),
            timeout_graceful_shutdown=int(self._settings.shutdown_timeout + _AFTER_CANCEL),
            ssl_certfile=self._settings.ssl_certfile,
            ssl_keyfile=self._settings.ssl_keyfile,
        )
        config.load()
        return config

    def _url(self, sock: socket.socket) -> str:
        return url(sock, "http" if self._settings.ssl_certfile is None else "https")

    def _opened(self, opened: Future[EngineClient], server: Uvicorn, service: Service) -> None:
        if self._is_ending:
            return  # whether the model was loaded after all, nobody needs to know
        error = opened.exception()
        if error is None:
            gc.freeze()  # to look at all that was loaded by now would hold the loop for a tenth of a second each time
            gc.set_threshold(_BETWEEN_COLLECTIONS)
            self._tell(f"{service.served.model} is ready")
        else:
            self._error = error
            self._end(server, service)

    def _on_signal(self, server: Uvicorn, service: Service) -> None:
        """The first signal lets requests end; the second ends the process."""
        if self._is_ending:
            os._exit(_KILLED)
        self._is_ending = True
        self._tell("ending: no new requests are taken; a second signal ends at once")
        self._end(server, service)

    def _end(self, server: Uvicorn, service: Service) -> None:
        """Take no new requests, and end those that are there after a while; viewers of the page would stay for ever."""
        service.watching.end()
        server.end()

        def abort() -> None:
            service.abort()
            server.refuse_unread()

        asyncio.get_running_loop().call_later(self._settings.shutdown_timeout, abort)
