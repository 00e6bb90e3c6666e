"""Log-probabilities of tokens as they cross processes. Knows tokens by id only."""

from __future__ import annotations

import msgspec


class Logprobs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Natural logarithms of what the model itself thought of consecutive tokens, before any sampling parameter.

    Lists of equal length, an entry a token; the last two are empty where no alternatives were asked for.
    """

    logprobs: list[float]
    greedy: list[bool]
    """Whether the token is the likeliest one at its place."""
    top_token_ids: list[list[int]] = []
    """The likeliest tokens at each place, the likeliest first."""
    top_logprobs: list[list[float]] = []
