"""A prompt that is several requests: one future of them all, their times, and their ids. Knows no socket, no thread.

A derived id holds a character that no caller's id may have, so the two are never equal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Generic, TypeVar

from msgspec.structs import replace

from ..wire.errors import InvalidRequest
from ..wire.request import LONGEST_NAME, Output, Request

Combined = TypeVar("Combined")
SendRequest = Callable[[Request], Future[Output]]

_SEPARATOR = "\x1f"  # ASCII: unit separator
_LONGEST = LONGEST_NAME - 32
"""Characters; derived ids are a little longer."""


def callers_id(request_id: str) -> str:
    """The id, if a caller may give it; raises InvalidRequest."""
    if _SEPARATOR in request_id:
        raise InvalidRequest(f"request_id={request_id!r}: takes text without U+001F, which derived ids hold")
    if len(request_id) > _LONGEST:
        raise InvalidRequest(f"request_id of {len(request_id)} characters: takes at most {_LONGEST}")
    return request_id


def sibling_id(family: str, index: int) -> str:
    """The id of request `index` of the requests that share a prompt. The first has the caller's own id, which is also
    the name of the group (`Request.family`).
    """
    return f"{family}{_SEPARATOR}{index}" if index else family


def submit_joined(
    send: SendRequest,
    requests: Iterable[Request],
    combine: Callable[[list[Output]], Combined],
    clock: Callable[[], float] = time.monotonic,
) -> Future[Combined]:
    """A future of `combine` of all the requests' answers, in order. `send` may wait and raise, as for one request. The
    latency of each answer begins with this call: it includes the time in which earlier requests were sent.

    If one fails, the others are cancelled and the future fails as that one did. Cancelling the future cancels all.
    """
    requests, began = list(requests), clock()
    joined = _Joined(len(requests), combine)
    for request in requests:
        if joined.future.done():
            break
        try:
            waited = clock() - began
            joined.add(send(request), waited)
        except BaseException:
            joined.cancel()
            raise
    return joined.future


class _Joined(Generic[Combined]):
    """The futures of several requests, and the one future that the caller gets."""

    def __init__(self, count: int, combine: Callable[[list[Output]], Combined]) -> None:
        self.future: Future[Combined] = Future()
        self._combine = combine
        self._missing = count
        self._decided = False
        self._children: list[tuple[Future[Output], float]] = []
        """Each with the seconds that passed before it was sent."""
        self._lock = threading.Lock()
        self.future.add_done_callback(lambda future: self.cancel() if future.cancelled() else None)

    def add(self, child: Future[Output], waited: float) -> None:
        self._children.append((child, waited))
        child.add_done_callback(self._ended)
        if self.future.done():  # since this child was sent
            self.cancel()

    def cancel(self) -> None:
        """Cancel all requests that are not done."""
        for child, _ in self._children.copy():
            child.cancel()

    def _ended(self, child: Future[Output]) -> None:
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
            answers = [(child.result(), waited) for child, waited in self._children]
            self.future.set_result(
                self._combine([replace(each, latency=each.latency + waited) for each, waited in answers])
            )
