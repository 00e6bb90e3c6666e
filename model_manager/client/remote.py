"""Connects to a manager at a TCP address, which others start, and start again. A client here never starts one."""

from __future__ import annotations

import logging
import threading
import time

from ..wire.errors import ConfigError, ManagerUnavailable
from ..wire.messages import AdapterFound, FindAdapter, ManagerToClient
from ..wire.request import Adapter
from ..wire.tcp import TcpManager, Unreachable
from ..wire.transport import Connection
from .adapter_lookup import Adapters
from .observing import ask

REACHED_WITHIN = 180.0
"""Seconds for a manager to be there: Kubernetes pauses before it starts a container again, longer each time."""
_PAUSE = 0.5
_FOUND_WITHIN = 1800.0
"""Seconds for the manager to fetch an adapter."""
_FOUND_FOR = 60.0
"""Seconds, at most, after which the manager is asked again whether an adapter's files are the same."""
_log = logging.getLogger(__name__)


class Remote:
    """Connects one process to the manager."""

    def __init__(self, manager: TcpManager) -> None:
        self._manager = manager

    def connect(self, give_up: threading.Event, within: float = REACHED_WITHIN) -> Connection[ManagerToClient]:
        """A connection to the manager, as soon as there is one.

        Raises ManagerUnavailable after `within` seconds, or once `give_up` is set; ConfigError for another key.
        """
        deadline, reason = time.monotonic() + within, ""
        while not give_up.is_set() and time.monotonic() < deadline:
            try:
                sock, tls = self._manager.connect()
            except Unreachable as error:
                if not reason:
                    _log.warning("no manager at %s yet: %s", self._manager, error)
                reason = str(error)
                give_up.wait(_PAUSE)
            else:
                return Connection(sock, ManagerToClient, tls)
        raise ManagerUnavailable(f"no manager answers at {self._manager} within {within:g} s: {reason}")

    def fence(self) -> None:
        """Does nothing: whoever started the manager starts it again, and it has the address alone."""


def remote_adapters(manager: TcpManager, max_loras: int) -> Adapters:
    """Adapters that the manager finds, on its own file system or where it fetches them from."""

    def period() -> int:
        return int(time.monotonic() // _FOUND_FOR)

    def find(name: str) -> tuple[Adapter, object]:
        before = period()
        found = _answer(manager, FindAdapter(name))
        if found is None or found.adapter is None:
            raise ManagerUnavailable("no answer") if found is None or found.error is None else found.error.exception()
        return found.adapter, before

    return Adapters(max_loras, find, stamp=lambda _: period())


def _answer(manager: TcpManager, question: FindAdapter) -> AdapterFound | None:
    """The answer, as soon as the manager is there; raises ManagerUnavailable as `Remote.connect` does."""
    deadline = time.monotonic() + REACHED_WITHIN
    while True:
        try:
            return ask(manager, question, AdapterFound, _FOUND_WITHIN)
        except ConfigError as error:  # of the key: it concerns no adapter
            raise ManagerUnavailable(str(error)) from None
        except ManagerUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
