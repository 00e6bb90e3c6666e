"""The rows of a simulated job: lengths as the benchmarks' workloads have them, system prompts, and arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.workload import SKEWED_OUTPUTS, SKEWED_PROMPTS, UNIFORM, Item

GROUP = 100
"""Rows that stand one after another in the input and share a system prompt."""


@dataclass(frozen=True)
class Rows:
    """One entry a row, in the order of the input."""

    prompts: list[int]
    """Tokens, without the system prompt."""
    outputs: list[int]
    arrivals: list[float] | None = None
    """Seconds; None: all are there at the start."""
    prefixes: list[int] | None = None
    """Which system prompt a row begins with; None: no row has one."""
    prefix_tokens: int = 0

    def __len__(self) -> int:
        return len(self.prompts)

    def tokens(self, row: int) -> int:
        """Tokens of its prompt and its output, the system prompt left out."""
        return self.prompts[row] + self.outputs[row]

    @classmethod
    def of(cls, items: Sequence[Item], arrivals: list[float] | None = None) -> Rows:
        """A workload exactly as a benchmark runs it."""
        return cls([len(item.prompt_token_ids) for item in items], [item.num_output for item in items], arrivals)

    @classmethod
    def drawn(cls, count: int, workload: str, seed: int, rate: float = 0.0) -> Rows:
        """`count` rows with lengths of `skewed` or `uniform`; with a `rate` they come so many a second (Poisson)."""
        random = np.random.default_rng(seed)
        if workload == "uniform":
            prompts, outputs = ([length] * count for length in UNIFORM)
        else:
            prompts, outputs = (_lognormal(random, count, *shape) for shape in (SKEWED_PROMPTS, SKEWED_OUTPUTS))
        arrivals = np.cumsum(random.exponential(1 / rate, count)).tolist() if rate else None
        return cls(prompts, outputs, arrivals)

    def with_prefixes(self, count: int, tokens: int) -> Rows:
        """The same rows; each GROUP of them has one of `count` system prompts in turn."""
        prefixes = [row // GROUP % count for row in range(len(self))]
        return Rows(self.prompts, self.outputs, self.arrivals, prefixes, tokens)


def _lognormal(random: np.random.Generator, count: int, median: float, sigma: float, low: int, high: int) -> list[int]:
    drawn = np.exp(random.normal(np.log(median), sigma, count))
    return [int(each) for each in np.clip(np.rint(drawn), low, high)]
