"""Log-probabilities of tokens: as they cross processes, by id alone; as a user sees them, with each token's text."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

LEAST = -9999.0
"""Stands for the logarithm of 0, as OpenAI and vLLM write it: JSON has no infinity."""


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
    token_ids: list[int] = []
    """The tokens of a score. Empty on the wire, as the next field: the client adds both."""
    tokens: list[TokenLogprob] = []
    """The tokens of a generation or its prompt, with their texts."""

    @classmethod
    def join(cls, parts: Iterable[Logprobs]) -> Logprobs:
        """Join parts, one after the other."""
        found = list(parts)
        return cls(
            logprobs=[each for part in found for each in part.logprobs],
            greedy=[each for part in found for each in part.greedy],
            top_token_ids=[each for part in found for each in part.top_token_ids],
            top_logprobs=[each for part in found for each in part.top_logprobs],
        )

    def part(self, start: int, stop: int | None = None) -> Logprobs:
        """The log-probabilities of the tokens from `start` to before `stop`, or to the last token."""
        part = slice(start, stop)
        tops = self.top_token_ids[part], self.top_logprobs[part]
        return Logprobs(self.logprobs[part], self.greedy[part], *tops, self.token_ids[part], self.tokens[part])

    def each(self) -> list[Logprobs]:
        """Log-probabilities of each token by itself."""
        return [self] if len(self) == 1 else [self.part(at, at + 1) for at in range(len(self))]

    def __len__(self) -> int:
        return len(self.logprobs)

    @property
    def num_numbers(self) -> int:
        """How many numbers it holds."""
        return 2 * len(self.logprobs) + 2 * sum(map(len, self.top_token_ids))


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that could have stood in a place, in the names of OpenAI's answers."""

    token: str
    """Its own text; a part of a character is shown as U+FFFD."""
    token_id: int
    """Its id."""
    logprob: float
    """Natural logarithm of its probability."""


class TokenLogprob(TopLogprob, frozen=True):
    """A token that stands in its place."""

    top_logprobs: list[TopLogprob]
    """The likeliest tokens at this place, the likeliest first. The token itself need not be among them."""
