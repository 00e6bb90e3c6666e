"""The acceptance rate of a sequence's recent draft tokens, and from it how many drafts are worth computing.

Knows one sequence's record; not the drafts themselves, nor the other sequences of a step.
"""

from __future__ import annotations

import math

_WEIGHT = 1 / 8
"""Weight of the latest draft in the running mean: about the last eight count."""
_FIRST_RATE = 0.5
"""Assumed rate before any draft."""
_REST = 32
"""Output tokens after which a sequence whose drafts were not worth it is tried again."""


class Acceptance:
    """Running mean of the acceptance rate of one sequence's drafts."""

    def __init__(self) -> None:
        self.rate = _FIRST_RATE
        self._resumes_at = 0

    def worthwhile(self, num_output_tokens: int, least: float) -> float:
        """Most drafts such that even the last is accepted with a probability of `least`; the k-th with rate ** k.

        0 while the sequence rests: until it has `_REST` more tokens than when its rate fell below `least`.
        """
        if num_output_tokens < self._resumes_at:
            return 0
        if least <= 0 or self.rate >= 1:
            return math.inf
        return max(1, int(math.log(least) / math.log(self.rate)))

    def note(self, drafted: int, accepted: int, num_output_tokens: int, least: float) -> None:
        """Note the result of one step's drafts; drafts after the first wrong one say nothing."""
        for right in [True] * accepted + [False] * (accepted < drafted):
            self.rate += (right - self.rate) * _WEIGHT
        if self.rate < least:
            self.rate = least  # so that one draft decides after the rest
            self._resumes_at = num_output_tokens + _REST
