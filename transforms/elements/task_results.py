"""Results of Score, Embed, Extract and Classify, and how Beam encodes them. Plain values, as in completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import apache_beam as beam
import msgspec

from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.timings import Timings

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
    """Number of tokens."""
    token_ids: list[int]
    """Tokens of the continuation."""
    token_logprobs: list[float]
    """Log-probability of each token."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every result has."""

    id: str
    """The row's id."""
    finish_reason: FinishReason = FinishReason.STOP
    """Always `stop`: a row without a result is a dead letter."""
    usage: Usage = Usage()
    """Tokens of all requests of the row; each continuation is one request."""
    timings: Timings | None = None
    """Seconds from the manager's receipt of the request that finished last to each event."""
    latency: float = 0.0
    """Seconds from submission to result, as the worker saw them."""
    model: str = ""
    """Name of the model that answered, as it was given."""
    revision: str = ""
    """Contents of the model: a hub's commit, or a hash of a folder's or a bucket's files."""
    prompt_hash: str = ""
    """16 hex digits of the prompt and the row's own parameters, by which `--resume` tells rows of one id apart."""
    columns: dict[str, Any] = {}
    """The row's further columns."""


class Spent(TypedDict):
    """Fields of a result that say what it took."""

    usage: Usage
    timings: Timings
    latency: float


def spent(answers: Sequence[Output]) -> Spent:
    """What the requests of a result took."""
    return Spent(
        usage=Usage.of(answers),
        timings=max(answers, key=lambda each: each.timings.finished).timings,
        latency=max(each.latency for each in answers),
    )


class Scored(Result, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt and the scores of its continuations, in the order given."""

    scores: list[ContinuationScore] = []
    """Scores of the continuations, in the order given."""


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
    """The same for each value, by its path; 0, which is certain, if no token was free."""
    spans: dict[str, tuple[int, int]] = {}
    """Characters of the document, from and up to, that hold each value that is a piece of it, by path."""
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
