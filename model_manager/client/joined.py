"""Several requests behind one future. Knows requests and futures; no socket, no thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from ..wire.messages import Request

Result = TypeVar("Result")
Send = Callable[[Request], Future[Any]]


def submit_joined(send: Send, requests: Iterable[Request], combine: Callable[[list[Any]], Result]) -> Future[Result]:
    """A future of `combine` of all the requests' results, in order. `send` may wait and raise, as for one request.

    If one fails, the others are cancelled and the future fails as that one did. Cancelling the future cancels all.
    """
    requests = list(requests)
    joined = _Joined(len(requests), combine)
    for request in requests:
        if joined.future.done():
            break
        try:
            joined.add(send(request))
        except BaseException:
            joined.cancel()
            raise
    return joined.future


class _Joined(Generic[Result]):
    """The futures of several requests, and the one future that the caller gets."""

    def __init__(self, count: int, combine: Callable[[list[Any]], Result]) -> None:
        self.future: Future[Result] = Future()
        self._combine = combine
        self._missing = count
        self._decided = False
        self._children: list[Future[Any]] = []
        self._lock = threading.Lock()
        self.future.add_done_callback(lambda future: self.cancel() if future.cancelled() else None)

    def add(self, child: Future[Any]) -> None:
        self._children.append(child)
        child.add_done_callback(self._ended)
        if self.future.done():  # since this child was sent
            self.cancel()

    def cancel(self) -> None:
        """Cancel all requests that are not done."""
        for child in self._children.copy():
            child.cancel()

    def _ended(self, child: Future[Any]) -> None:
        if child.cancelled():
            return
        error = child.exception()
        with self._lock:
            self._missing -= 1
            decides = not self._decided and (error is not None or not self._missing)
            self._decided |= decides
        if decides and self.future.set_running_or_notify_cancel():
            self._decide(error)

    def _decide(self, error: BaseException | None) -> None:
        if error is not None:
            self.future.set_exception(error)
            self.cancel()
        else:
            self.future.set_result(self._combine([each.result() for each in self._children]))
