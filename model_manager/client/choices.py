"""n > 1: one prompt, several answers. Each answer is a request of its own; the caller gets one result with all answers.

The engine shares the prompt's keys and values among them. Knows requests and futures; no socket, no thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from msgspec.structs import replace

from ..wire.request import Output, Request
from .deltas import Delta, OnDelta
from .joined import sibling_id, submit_joined

SendStreamed = Callable[[Request, OnDelta | None], Future[Any]]


def submit_choices(send: SendStreamed, request: Request, on_delta: OnDelta | None = None) -> Future[Output]:
    """A future of the first answer with all `params.n` of them in `choices`; `send` may wait, and raise, as for one.

    If one fails, the others are cancelled and the future fails as that one did. Cancelling the future cancels all.
    """
    requests = choice_requests(request)
    takers = {each.request_id: _numbered(on_delta, index) for index, each in enumerate(requests)}
    return submit_joined(
        lambda each: send(each, takers[each.request_id]),
        requests,
        lambda answers: replace(answers[0], choices=tuple(answers)),
    )


def _numbered(on_delta: OnDelta | None, index: int) -> OnDelta | None:
    """What takes the deltas of answer `index`."""
    if on_delta is None:
        return None

    def take(delta: Delta) -> None:
        on_delta(replace(delta, index=index))

    return take


def choice_requests(request: Request) -> list[Request]:
    """One request for each of `params.n` answers, of one family.

    The first request is the same as for n = 1. The seeds of the others are computed from its seed and their index; if
    it has none, the engine takes their ids, as for every request without a seed. Only the first asks for
    log-probabilities of the prompt.
    """
    params = replace(request.params, n=1)
    first = replace(request, params=params, family=request.request_id)
    others = [
        replace(
            first,
            request_id=sibling_id(request.request_id, index),
            params=replace(params, seed=choice_seed(params.seed, index), prompt_logprobs=None),
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
