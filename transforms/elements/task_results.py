"""Results of Score, Embed, Extract and Classify, and how Beam encodes them. Plain values, like those of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import apache_beam as beam
import msgspec

from millrace.model_manager.wire.errors import ErrorInfo
from millrace.model_manager.wire.messages import FinishReason, Timings

from .answers import Answered
from .completions import StructCoder, Usage


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


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    revision: str = ""
    """As a Completion's."""
    columns: dict[str, Any] = {}
    """The prompt's further columns."""
    error: ErrorInfo | None = None


class Spent(TypedDict):
    """Those fields of a result that say what it took."""

    usage: Usage
    timings: Timings
    latency: float


def spent(requests: Sequence[Answered]) -> Spent:
    """What the requests of a result took, of which none generated anything."""
    return Spent(
        usage=Usage(sum(each.prompt_tokens for each in requests), sum(each.cached_tokens for each in requests)),
        timings=max(requests, key=lambda each: each.timings.finished).timings,
        latency=max(each.latency for each in requests),
    )


class Scored(Result, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt and the scores of its continuations, in the order given."""

    scores: list[ContinuationScore] = []


class Embedded(Result, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt as a vector."""

    embedding: list[float] = []
    """float32 values; numpy.array(embedding, numpy.float32) has the bits that the engine sent."""


class Extracted(Result, frozen=True, kw_only=True, omit_defaults=True):
    """A document and what was found in it. Paths are such as `lines[0].item`."""

    answer: str = ""
    """JSON of the type that was asked for, without the questions that its keys had."""
    confidence: float = 0.0
    """The mean log-probability of the answer's tokens that were free: where the grammar allowed more than one."""
    confidences: dict[str, float] = {}
    """Likewise of each value, by its path; 0, which is certain, where nothing was free."""
    spans: dict[str, tuple[int, int]] = {}
    """From which character of the document up to which the values stand there that are pieces of it, by their paths."""
    keys: dict[str, str] = {}
    """Keys of the answer that are not names, by the paths of their fields without places: `lines[].unit_price`."""


class Classified(Result, frozen=True, kw_only=True, omit_defaults=True):
    """A document and how likely the model finds each label."""

    labels: list[str] = []
    """The document's labels, the likeliest first."""
    probabilities: dict[str, float] = {}
    """One probability for each label, in the order given."""


for _struct in (Scored, Embedded, Extracted, Classified):
    beam.coders.registry.register_coder(_struct, StructCoder)
