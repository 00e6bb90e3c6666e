"""The model that the server answers with. Its client is opened beside the event loop, so /health answers meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.errors import EngineError, ManagerUnavailable, MillraceError
from millrace.model_manager.wire.request import Adapter

_PAUSE = 1.0
"""Seconds between two tries to reach a manager."""
_PATIENCE = 5.0
"""Seconds to wait for the end of an opening, which may be fetching files."""

_log = logging.getLogger(__name__)

EngineOpener = Callable[[threading.Event], EngineClient]
"""Opens a client; ends with an error once the event is set."""


class OpeningClient:
    """A client that is there, is on its way, or failed for good; a thread opens it."""

    def __init__(self, opener: EngineOpener) -> None:
        self._opener = opener
        self._abandoned = threading.Event()
        self.opened: Future[EngineClient] = Future()
        """The client; fails with what stops the model for good."""
        self._client: EngineClient | None = None
        """The client once it was asked for: a future takes its lock each time."""
        self._thread = threading.Thread(target=self._open, name="millrace-open", daemon=True)

    def start(self) -> None:
        """Begin to load the model; returns at once."""
        self._thread.start()

    @property
    def client(self) -> EngineClient:
        """The client of the loaded model; raises EngineError while there is none."""
        if self._client is not None:
            return self._client
        if not self.opened.done():
            raise ManagerUnavailable("the model is not loaded yet: try again")
        self._client = self.opened.result()
        return self._client

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded."""
        return self.opened.done() and self.opened.exception() is None

    def find_adapter(self, name: str) -> Adapter | None:
        """See EngineClient; raises EngineError while there is no client."""
        return self.client.find_adapter(name)

    def cancel(self, request_id: str) -> None:
        """End a request, if there is a client that knows it."""
        if self.is_ready:
            self.opened.result().cancel(request_id)

    def close(self) -> None:
        """End the opening, or let go of the model."""
        self._abandoned.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE)
        if self.is_ready:
            self.opened.result().close()

    def _open(self) -> None:
        while True:
            try:
                self.opened.set_result(self._opener(self._abandoned))
                return
            except EngineError as error:
                _log.warning("the model is not loaded: %s", error)
                if self._abandoned.wait(_PAUSE):
                    self.opened.set_exception(error)
                    return
            except Exception as error:
                mistake = EngineError(f"the model is not loaded: {type(error).__name__}: {error}")
                self.opened.set_exception(error if isinstance(error, MillraceError) else mistake)
                return
