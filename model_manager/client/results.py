"""What a request came to, for whoever asked: a Generation, a Score or an Embedding. Knows no socket and no model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..wire.messages import Output, Request, Timings
from .generation import Decoder, Generation, generation


@dataclass(frozen=True)
class Score:
    """Log-probabilities of a continuation's tokens, given all that comes before them."""

    token_ids: list[int]
    """Those scored: what the continuation adds to the tokens of its context."""
    logprobs: list[float]
    """Natural logarithms, of the model's own distribution."""
    greedy: list[bool]
    """Whether each token is the likeliest in its place."""
    prompt_tokens: int
    """Tokens of context and continuation together."""
    cached_tokens: int
    timings: Timings
    latency: float
    """Seconds from submit to here, as the client measured them."""


@dataclass(frozen=True)
class Embedding:
    """A prompt as a vector."""

    vector: npt.NDArray[np.float32]
    """[hidden_size]"""
    prompt_tokens: int
    cached_tokens: int
    timings: Timings
    latency: float
    """Seconds from submit to here, as the client measured them."""


def result_of(output: Output, request: Request, decoder: Decoder, latency: float) -> Generation | Score | Embedding:
    """The output of that request; what an engine is to give for its task must be there."""
    if request.task == "generate":
        return generation(output, request, decoder, latency)
    common = (output.prompt_tokens, output.cached_tokens, output.timings, latency)
    if request.task == "score":
        assert output.prompt_logprobs is not None, "a score has none"
        scored = request.prompt_token_ids[request.score_from :]
        return Score(scored, output.prompt_logprobs.logprobs, output.prompt_logprobs.greedy, *common)
    assert output.embedding is not None, "an embedding has none"
    return Embedding(np.frombuffer(output.embedding, "<f4").astype(np.float32), *common)
