"""Callbacks that outlive a client without keeping it alive: at a fork, and when a future is cancelled."""

from __future__ import annotations

import weakref
from concurrent.futures import Future
from typing import Any, Protocol


class Holder(Protocol):
    """What is called back."""

    def forsake(self) -> None:
        """This is a forked process: let go of what is the parent's."""

    def detach(self, request_id: str, future: Future[Any]) -> None:
        """The holder of that future has cancelled it."""


class Forsaking:
    """Has a client let go of its connection in a forked process; keeps no client alive."""

    def __init__(self, client: Holder) -> None:
        self._client = weakref.ref(client)

    def __call__(self) -> None:
        client = self._client()
        if client is not None:
            client.forsake()


class Detaching:
    """A future that its holder cancels takes its request along, unless others wait for the same."""

    def __init__(self, client: Holder, request_id: str) -> None:
        self._client = weakref.ref(client)
        self._request_id = request_id

    def __call__(self, future: Future[Any]) -> None:
        client = self._client()
        if future.cancelled() and client is not None:
            client.detach(self._request_id, future)
