"""Log-probabilities in an answer of llama-server, whose routes all give the same entries: tokens with their ids.

    {"id": 12, "token": " a", "logprob": -0.1, "top_logprobs": [{"id": 12, "token": " a", "logprob": -0.1}, …]}

OpenAI's entries have no `id`, and vLLM's have either an alternative's text or its id. Tokens that are parts of one
character have no entry at llama-server.
Source: tools/server/README.md of llama.cpp.
"""

from __future__ import annotations

import msgspec

from ...wire.decoding import json_decoder
from ...wire.errors import InvalidRequest
from ...wire.logprobs import LEAST, Logprobs, TokenLogprob, TopLogprob
from ...wire.sampling import SamplingParams
from .streams import TokenId

NO_ENTRIES = msgspec.Raw(b"null")
_LONGEST = 512
"""Characters of a token."""
_MOST = 0.001
"""A log-probability is 0 at most, and a little more after rounding."""


class _Candidate(msgspec.Struct):
    id: TokenId
    token: str
    logprob: float | None
    """None stands for the logarithm of 0."""

    @property
    def number(self) -> float:
        return LEAST if self.logprob is None else max(LEAST, self.logprob)


class _Entry(_Candidate):
    top_logprobs: list[_Candidate] = []


def num_asked(params: SamplingParams) -> int:
    """How many alternatives are asked for: one tells whether the token itself is the likeliest."""
    return max(1, params.logprobs or 0)


def logprobs_in(entries: msgspec.Raw, text: str, params: SamplingParams) -> Logprobs | None:
    """The log-probabilities of an answer with this text; None if they were not asked for.

    Raises InvalidRequest if the server gives none with token ids, or numbers that cannot be: one more try would bring
    the same.
    """
    if params.logprobs is None:
        return None
    if bytes(entries) == bytes(NO_ENTRIES) and not text:
        return Logprobs([], [])
    try:
        found = json_decoder(list[_Entry]).decode(entries)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _refused(params, "has no log-probabilities with token ids, as llama-server's have") from None
    _check(found, text, params)
    return _joined(found, params.logprobs)


def _refused(params: SamplingParams, what: str) -> InvalidRequest:
    return InvalidRequest(f"logprobs={params.logprobs}: the server's answer {what}")


def _check(entries: list[_Entry], text: str, params: SamplingParams) -> None:
    if not entries and any(map(str.isascii, text)):
        raise _refused(params, "has a text and no log-probabilities")
    if len(entries) > params.max_tokens + 1:
        raise _refused(params, "has log-probabilities of more tokens than were asked for")
    for entry in entries:
        if not entry.top_logprobs:
            raise _refused(params, "has a log-probability without the likeliest token's")
        for each in (entry, *entry.top_logprobs):
            if each.number > _MOST or len(each.token) > _LONGEST:
                raise _refused(params, "has a log-probability that no token has")


def _joined(entries: list[_Entry], count: int) -> Logprobs:
    """With `count` alternatives to each token, the likeliest first."""
    ordered = [sorted(entry.top_logprobs, key=lambda each: -each.number) for entry in entries]
    tops = [top[:count] for top in ordered]
    return Logprobs(
        logprobs=[entry.number for entry in entries],
        greedy=[entry.id == top[0].id for entry, top in zip(entries, ordered, strict=True)],
        top_token_ids=[[each.id for each in top] for top in tops if top],
        top_logprobs=[[each.number for each in top] for top in tops if top],
        token_ids=[entry.id for entry in entries],
        tokens=[
            TokenLogprob(
                entry.token, entry.id, entry.number, [TopLogprob(each.token, each.id, each.number) for each in top]
            )
            for entry, top in zip(entries, tops, strict=True)
        ],
    )
