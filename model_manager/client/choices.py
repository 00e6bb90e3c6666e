"""n > 1: one prompt, several answers. Each is a request of its own, and all their answers are one.

The engine shares the prompt's keys and values among them. Knows requests and futures; no socket, no thread.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import msgspec

from model_manager.client.generation import Generation
from model_manager.wire.messages import Request

Send = Callable[[Request], Future[Generation]]


def submit_choices(send: Send, request: Request) -> Future[Generation]:
    """A future of the first answer with all `params.n` of them in `choices`; `send` may wait, and raise, as for one.

    If one fails, the others are cancelled and the future fails as that one did. Cancelling the future cancels all.
    """
    joined = _Joined(request.params.n)
    for choice in choice_requests(request):
        if joined.future.done():
            break
        try:
            joined.add(send(choice))
        except BaseException:
            joined.cancel()
            raise
    return joined.future


def choice_requests(request: Request) -> list[Request]:
    """One request for each of `params.n` answers, of one family.

    The first is what it would be alone. The others have seeds made of its seed and their index or, if it has none, as
    every request without one, of their ids. What is read off the prompt is read once.
    """
    params = msgspec.structs.replace(request.params, n=1)
    first = msgspec.structs.replace(request, params=params, family=request.request_id)
    others = [
        msgspec.structs.replace(
            first,
            request_id=f"{request.request_id}#{index}",
            params=msgspec.structs.replace(params, seed=choice_seed(params.seed, index), prompt_logprobs=None),
        )
        for index in range(1, request.params.n)
    ]
    return [first, *others]


def choice_seed(seed: int | None, index: int) -> int | None:
    """The seed of answer `index`, of 63 bits; answer 0 has the seed itself."""
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(seed.to_bytes(8, "little") + index.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class _Joined:
    """The futures of a family, and the one that they come to."""

    def __init__(self, count: int) -> None:
        self.future: Future[Generation] = Future()
        self._missing = count
        self._decided = False
        self._children: list[Future[Generation]] = []
        self._lock = threading.Lock()
        self.future.add_done_callback(lambda future: self.cancel() if future.cancelled() else None)

    def add(self, child: Future[Generation]) -> None:
        self._children.append(child)
        child.add_done_callback(self._ended)
        if self.future.done():  # since this child was sent
            self.cancel()

    def cancel(self) -> None:
        """Those that are done stay as they are."""
        for child in self._children.copy():
            child.cancel()

    def _ended(self, child: Future[Generation]) -> None:
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
            answers = tuple(each.result() for each in self._children)
            self.future.set_result(replace(answers[0], choices=answers))
