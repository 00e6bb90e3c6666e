"""n > 1: one prompt, several answers. Each answer is a request of its own; the caller gets one result with all answers.

The engine shares the prompt's keys and values among them. Knows requests and futures; no socket, no thread.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future

from msgspec.structs import replace

from ..wire.messages import Output, Request
from .joined import Send, submit_joined
from .request_ids import sibling_id


def submit_choices(send: Send, request: Request) -> Future[Output]:
    """A future of the first answer with all `params.n` of them in `choices`; `send` may wait, and raise, as for one.

    If one fails, the others are cancelled and the future fails as that one did. Cancelling the future cancels all.
    """
    return submit_joined(send, choice_requests(request), lambda answers: replace(answers[0], choices=tuple(answers)))


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
