"""The cost of a step of one machine's engine, fitted to measured steps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.timeline import Timeline

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step: `base`, and for each row that gives a token and each other token of a prompt."""

    base: float
    per_row: float
    per_prompt_token: float
    fit: float = 1.0
    """The share of the variance of measured steps that this explains (R²)."""

    @classmethod
    def fitted(cls, path: Path = RESULTS / "timeline.json") -> StepCost:
        """Least squares over all steps of a file of benchmarks.timeline, the first one excepted."""
        line = Timeline(**json.loads(path.read_text(encoding="utf-8")))
        seconds = np.array(line.step_ms[1:]) / 1000
        rows = np.array(line.sampled[1:], float)
        terms = np.stack([np.ones_like(rows), rows, np.array(line.tokens[1:]) - rows], axis=1)
        found = np.linalg.lstsq(terms, seconds, rcond=None)[0]
        unexplained = float(np.var(seconds - terms @ found) / np.var(seconds))
        base, per_row, per_prompt_token = map(float, found)
        return cls(base, per_row, per_prompt_token, fit=1 - unexplained)

    def times(self, factor: float) -> StepCost:
        """The cost on a machine on which every step takes so many times as long."""
        return StepCost(self.base * factor, self.per_row * factor, self.per_prompt_token * factor, self.fit)

    def least(self, prompts: int, outputs: int, max_num_seqs: int) -> float:
        """Seconds below which no order of steps brings `outputs` tokens of rows whose prompts have `prompts` more."""
        return self.base * outputs / max_num_seqs + self.per_row * outputs + self.per_prompt_token * prompts


def load_seconds(shape: str = "opt-125m", dtype: str = "bfloat16", path: Path = RESULTS / "start.json") -> float:
    """Seconds from the start of the inference process to its first token, as benchmarks.start measured them."""
    starts = json.loads(path.read_text(encoding="utf-8"))["starts"]
    wanted = {"engine": "millrace", "shape": shape, "dtype": dtype}
    return next(float(each["first_token_s"]) for each in starts if wanted.items() <= each.items())
