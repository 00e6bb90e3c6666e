"""Scored and Embedded: what Score and Embed give, and how Beam encodes it. Plain values, as those of elements.py."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import msgspec

from model_manager.wire.errors import ErrorInfo
from model_manager.wire.messages import FinishReason, Timings
from transforms.elements import StructCoder, Usage


class ContinuationScore(msgspec.Struct, frozen=True, kw_only=True):
    """How likely the model finds one continuation of a prompt; logarithms are natural ones."""

    continuation: str | list[int]
    """As it was given."""
    logprob: float
    """The sum of `token_logprobs`."""
    is_greedy: bool
    """Whether each token is the likeliest in its place: greedy generation would have given them."""
    num_tokens: int
    """Scored tokens."""
    token_ids: list[int]
    token_logprobs: list[float]


class _Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every result has; with finish reason `error`, `error` says why."""

    id: str
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()
    """Of all requests that it took: each continuation is one."""
    timings: Timings | None = None
    """Seconds from the manager's receipt of the request, of the one that finished last."""
    latency: float = 0.0
    """Seconds from submission to result, as the worker saw them."""
    model: str = ""
    columns: dict[str, Any] = {}
    """The prompt's further columns."""
    error: ErrorInfo | None = None


class Scored(_Result, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt and the scores of its continuations, in the order given."""

    scores: list[ContinuationScore] = []


class Embedded(_Result, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt as a vector."""

    embedding: list[float] = []
    """float32 values; numpy.array(embedding, numpy.float32) has the bits that the engine sent."""


class ScoredCoder(StructCoder):
    """Deterministic coder of Scored."""

    struct = Scored


class EmbeddedCoder(StructCoder):
    """Deterministic coder of Embedded."""

    struct = Embedded


for _coder in (ScoredCoder, EmbeddedCoder):
    beam.coders.registry.register_coder(_coder.struct, _coder)
