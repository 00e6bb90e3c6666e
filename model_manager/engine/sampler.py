"""From logits to one token for each row, by that row's own parameters and random number.

Knows rows; not sequences. A row's token depends on nothing outside it: sums run along a row in the order of token ids
(or of probabilities), and equal logits are kept or dropped together, so that neither company nor ties change it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from model_manager.engine.batch_table import SamplingRows
from model_manager.engine.random_numbers import uniforms

_CANDIDATES = 256
"""How many of the likeliest tokens are looked at first for top_p; most rows need no more."""


@dataclass(frozen=True)
class Samples:
    """The outcome for L rows."""

    token_ids: list[int]
    finite: list[bool]
    """False where the logits hold NaN or +infinity, or nothing but -infinity: that row's token means nothing."""


class Sampler:
    """Greedy rows take the likeliest token; others are drawn by inverse transform from what top_k and top_p leave."""

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> Samples:
        """One token id for each row of [L, V] float32 logits."""
        best, token_ids = logits.max(dim=-1)  # NaN counts as the greatest, so `best` alone tells what is not finite
        finite = torch.isfinite(best)
        random = np.flatnonzero(rows.temperature)
        if random.size:
            chosen = torch.from_numpy(random).to(logits.device)
            token_ids[chosen] = _draw(logits[chosen], best[chosen], _only(rows, random))
        return Samples(token_ids.tolist(), finite.tolist())


def _only(rows: SamplingRows, chosen: npt.NDArray[np.intp]) -> SamplingRows:
    return SamplingRows(
        temperature=rows.temperature[chosen],
        top_k=rows.top_k[chosen],
        top_p=rows.top_p[chosen],
        seed=rows.seed[chosen],
        index=rows.index[chosen],
    )


def _draw(logits: torch.Tensor, best: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """[L] token ids. Weights are exp((logit - best) / temperature), so the likeliest token's is 1."""
    _apply_top_k(logits, rows.top_k)
    temperature = torch.from_numpy(rows.temperature).to(logits.device)
    weights = torch.exp((logits - best[:, None]) / temperature[:, None])
    _apply_top_p(weights, rows.top_p)
    cumulative = torch.cumsum(weights, dim=-1, dtype=torch.float64)
    uniform = torch.from_numpy(uniforms(rows.seed, rows.index)).to(logits.device)
    drawn = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)
    return drawn[:, 0].clamp_(max=logits.shape[1] - 1)  # beyond the end only where the logits are not finite


def _apply_top_k(logits: torch.Tensor, top_k: npt.NDArray[np.int64]) -> None:
    """Set to -infinity what is below each row's k-th greatest logit."""
    rows = np.flatnonzero((top_k > 0) & (top_k < logits.shape[1]))
    if rows.size:
        chosen = torch.from_numpy(rows).to(logits.device)
        limited = logits[chosen]
        greatest = limited.topk(int(top_k[rows].max()), dim=-1).values
        kth = greatest.gather(1, torch.from_numpy(top_k[rows] - 1).to(logits.device)[:, None])
        logits[chosen] = limited.masked_fill_(limited < kth, -torch.inf)


def _apply_top_p(weights: torch.Tensor, top_p: npt.NDArray[np.float64]) -> None:
    """Set to 0 what is below the weight at which each row's likeliest tokens together reach its top_p."""
    rows = np.flatnonzero(top_p < 1.0)
    if rows.size:
        chosen = torch.from_numpy(rows).to(weights.device)
        limited = weights[chosen]
        mass = torch.from_numpy(top_p[rows]).to(weights.device) * limited.sum(dim=-1, dtype=torch.float64)
        weights[chosen] = limited.masked_fill_(limited < _least_kept(limited, mass)[:, None], 0.0)


def _least_kept(weights: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """[L] the smallest weight that is needed, adding from the greatest down, to reach `mass`."""
    count = min(_CANDIDATES, weights.shape[1])
    while True:
        greatest = weights.topk(count, dim=-1).values
        reached = torch.cumsum(greatest, dim=-1, dtype=torch.float64)
        if count == weights.shape[1] or bool((reached[:, -1] >= mass).all()):
            break
        count = min(count * 8, weights.shape[1])
    last = torch.searchsorted(reached, mass[:, None]).clamp_(max=count - 1)
    return greatest.gather(1, last)[:, 0]
