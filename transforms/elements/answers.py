"""What clients answer requests with, as types. Knows no client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from millrace.model_manager.wire.logprobs import TokenLogprob
from millrace.model_manager.wire.messages import FinishReason, Timings


class Answered(Protocol):
    """What is known of every request that was answered."""

    prompt_tokens: int
    cached_tokens: int
    timings: Timings
    latency: float


class Generation(Answered, Protocol):
    """What a request came to."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob] | None
    forced: list[int]
    """Positions in `token_ids` of tokens that were the only ones that a constraint allowed."""
    closed_at: int | None
    """The offset in `text` where another ending begins, if the budget cut a constrained output."""

    @property
    def choices(self) -> Sequence[Generation]:
        """For n > 1 all answers, this one first; else none."""


def answers_of(generation: Generation) -> Sequence[Generation]:
    """All answers that a generation consists of, itself the first."""
    return generation.choices or (generation,)


def num_generated_tokens(generation: Generation) -> int:
    """The number of tokens that all its answers have."""
    return sum(len(answer.token_ids) for answer in answers_of(generation))


class ContinuationResult(Answered, Protocol):
    """The score of one continuation, a value a token."""

    token_ids: list[int]
    logprobs: list[float]
    greedy: list[bool]


class EmbeddingResult(Answered, Protocol):
    """A prompt's vector."""

    vector: Iterable[Any]
