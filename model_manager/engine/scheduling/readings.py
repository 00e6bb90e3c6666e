"""Results that are read off a prompt while it is computed: log-probabilities of its tokens, or its embedding.

A sequence has one reading at most. Row i of a sequence is the final hidden state of token i, which predicts token
i + 1. Knows one prompt and numbers; not the model, nor how many steps the prompt takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...wire.logprobs import Logprobs
from ...wire.request import Pooling, Request

Floats = npt.NDArray[np.float32]


class PromptReading:
    """Reads the rows `next` .. `stop` - 1 in order. They are computed even if the prefix cache holds their blocks.

    The values read so far stay when the sequence is preempted.
    """

    def __init__(self, first: int, stop: int) -> None:
        self.next = first
        self.stop = stop
        self.finite = True
        """True if everything read is finite."""

    @property
    def done(self) -> bool:
        """True if nothing is left to read."""
        return self.next >= self.stop

    def rows(self, start: int, count: int) -> range:
        """Which of the `count` tokens from position `start` on are read, counted from the first of them."""
        return range(max(self.next - start, 0), max(min(self.stop - start, count), 0))


@dataclass(frozen=True)
class Scores:
    """Scores of N tokens, with K alternatives each."""

    logprobs: Floats
    """[N]"""
    greedy: npt.NDArray[np.bool_]
    """[N]"""
    top_token_ids: npt.NDArray[np.int64]
    """[N, K]"""
    top_logprobs: Floats
    """[N, K]"""

    def part(self, start: int, stop: int, num_top: int) -> Scores:
        """Tokens start .. stop - 1, with `num_top` alternatives."""
        part = slice(start, stop)
        return Scores(
            self.logprobs[part],
            self.greedy[part],
            self.top_token_ids[part, :num_top],
            self.top_logprobs[part, :num_top],
        )


class ScoreReading(PromptReading):
    """Log-probabilities of the tokens from index `first` on, `num_top` alternatives to each."""

    def __init__(self, token_ids: list[int], first: int, num_top: int) -> None:
        super().__init__(first - 1, len(token_ids) - 1)
        self.num_top = num_top
        self._token_ids = token_ids
        self._parts: list[Scores] = []

    def targets(self, count: int) -> list[int]:
        """The tokens that the next `count` rows predict."""
        return self._token_ids[self.next + 1 : self.next + 1 + count]

    def add(self, scores: Scores) -> None:
        """Add the next tokens' scores."""
        self.next += len(scores.logprobs)
        self.finite &= bool(np.isfinite(scores.logprobs).all())
        self._parts.append(scores)

    def result(self) -> Logprobs:
        """The log-probabilities of all tokens read."""
        return Logprobs(
            logprobs=[value for part in self._parts for value in part.logprobs.tolist()],
            greedy=[value for part in self._parts for value in part.greedy.tolist()],
            top_token_ids=[ids for part in self._parts for ids in part.top_token_ids.tolist()] if self.num_top else [],
            top_logprobs=[row for part in self._parts for row in part.top_logprobs.tolist()] if self.num_top else [],
        )


class EmbedReading(PromptReading):
    """The last token's final hidden state, or the mean of all tokens'; of length 1 if `normalize`."""

    def __init__(self, num_tokens: int, pooling: Pooling, normalize: bool) -> None:
        super().__init__(num_tokens - 1 if pooling == "last" else 0, num_tokens)
        self._count = num_tokens - self.next
        self._normalize = normalize
        self._total: npt.NDArray[np.float64] | None = None

    def add(self, total: npt.NDArray[np.float64], count: int) -> None:
        """Add the sum [hidden_size] of the next `count` rows."""
        self.next += count
        self.finite &= bool(np.isfinite(total).all())
        self._total = total if self._total is None else self._total + total

    def result(self) -> bytes:
        """The embedding, float32 little endian."""
        assert self.done
        assert self._total is not None
        vector = self._total / self._count
        length = float(np.linalg.norm(vector))
        if self._normalize and length > 0:
            vector = vector / length
        return vector.astype("<f4").tobytes()


def reading_of(request: Request) -> ScoreReading | EmbedReading | None:
    """The reading that a request wants; None for a generation without prompt log-probabilities."""
    tokens = request.prompt_token_ids
    if request.task == "score":
        return ScoreReading(tokens, request.score_from, num_top=0)
    if request.task == "embed":
        return EmbedReading(len(tokens), request.pooling, request.normalize)
    if request.params.prompt_logprobs is not None:
        return ScoreReading(tokens, 1, num_top=request.params.prompt_logprobs)
    return None
