"""Aligns an answer's tokens with its characters: which token wrote which, and how sure the model was of them.

Tokens come with their own texts, in which a part of a character is U+FFFD.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import fmean

from .answer_values import Range

_BROKEN = "\ufffd"


def token_ranges(text: str, tokens: Sequence[str]) -> list[Range]:
    """Where each token stands in the text. Tokens that share a character all stand on the whole character."""
    found: list[Range] = []
    at = 0
    for number, token in enumerate(tokens):
        if _BROKEN in token and not text.startswith(token, at):
            end = _end_of_broken(text, at, tokens[number:])
            found.append((at, end))
            if number + 1 < len(tokens) and _BROKEN not in tokens[number + 1]:
                at = end
            continue
        if not text.startswith(token, at):
            token = token.strip()  # what decoding drops at the beginning
        start = text.find(token, at) if token else at
        start = at if start < 0 else start
        at = min(start + len(token), len(text))
        found.append((start, at))
    return found


def _end_of_broken(text: str, at: int, tokens: Sequence[str]) -> int:
    """Where the next whole token begins."""
    whole = next((token for token in tokens if token and _BROKEN not in token), None)
    end = -1 if whole is None else text.find(whole, min(at + 1, len(text)))
    return len(text) if end < 0 else end


class Confidence:
    """Means of log-probabilities of tokens that were free: where more than one was allowed."""

    def __init__(self, ranges: Sequence[Range], logprobs: Sequence[float], forced: Iterable[int]) -> None:
        """One entry a token; `forced` are positions."""
        excluded = set(forced)
        self._free = sorted(
            (*where, logprob)
            for position, (where, logprob) in enumerate(zip(ranges, logprobs, strict=True))
            if position not in excluded and where[0] < where[1]
        )
        self._starts = [start for start, _, _ in self._free]
        self._ends = list(accumulate((end for _, end, _ in self._free), max))
        """The last end up to each, so that these are in order too."""

    def over(self, where: Range) -> float:
        """Log-probability of the free tokens that wrote any of these characters; 0 (certain) if all were forced."""
        start, end = where
        near = self._free[bisect_right(self._ends, start) : bisect_left(self._starts, end)]
        free = [logprob for _, last, logprob in near if last > start]
        return fmean(free) if free else 0.0
