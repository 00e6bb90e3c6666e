"""From logits to one token for each row, by that row's own parameters and random number.

Knows rows; not sequences. A row's token depends on nothing outside it: tokens of equal probability are kept or dropped
together, and what is kept is added up in the order of token ids, so that neither company nor ties change the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch

from model_manager.engine.batch_table import SamplingRows
from model_manager.engine.interface import Longs
from model_manager.engine.random_numbers import uniforms

_CANDIDATES = 128
"""How many of the likeliest tokens are looked at first for top_p; few rows need more."""
_MOST_WEIGHTS = 2**20
"""How many weights, rows times vocabulary, are held at once."""
_TIES = 32
"""How many more than top_k are looked at first, in case of equals."""


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
        if rows.temperature.any():
            drawn = rows.temperature > 0
            cut = (rows.top_k > 0) & (rows.top_k < logits.shape[1]) | (rows.top_p < 1)
            for chosen, draw in ((drawn & ~cut, _draw_from_all), (drawn & cut, _draw_from_likeliest)):
                for part in _parts(np.flatnonzero(chosen), logits.shape[1]):
                    index = torch.from_numpy(part).to(logits.device)
                    token_ids[index] = draw(logits[index], best[index], _only(rows, part))
        return Samples(token_ids.tolist(), finite.tolist())


def _parts(chosen: Longs, vocab_size: int) -> list[Longs]:
    """The rows in parts that need little memory at once (and so, on a CPU, stay in its cache)."""
    size = max(1, _MOST_WEIGHTS // vocab_size)
    return [chosen[start : start + size] for start in range(0, len(chosen), size)]


def _only(rows: SamplingRows, chosen: Longs) -> SamplingRows:
    return SamplingRows(**{field.name: getattr(rows, field.name)[chosen] for field in fields(rows)})


def _weights(logits: torch.Tensor, best: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """exp((logit - best) / temperature) of [L, K] logits: the likeliest token weighs 1."""
    temperature = torch.from_numpy(rows.temperature).to(logits.device)
    return (logits - best[:, None]).div_(temperature[:, None]).exp_()


def _uniform(rows: SamplingRows, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(uniforms(rows.seed, rows.index)).to(device)[:, None]


def _draw_from_all(logits: torch.Tensor, best: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """[L] token ids."""
    reached = _weights(logits, best, rows).cumsum(dim=-1, dtype=torch.float64)
    return _invert(reached, _uniform(rows, logits.device))[:, 0]


def _draw_from_likeliest(logits: torch.Tensor, best: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """[L] token ids from what top_k and then top_p leave."""
    top_k = np.where(rows.top_k > 0, np.minimum(rows.top_k, logits.shape[1]), logits.shape[1])
    mass = torch.zeros(len(logits), 1, dtype=torch.float64, device=logits.device)
    whole = np.flatnonzero(top_k == logits.shape[1])
    if whole.size:
        index = torch.from_numpy(whole).to(logits.device)
        mass[index] = _weights(logits[index], best[index], _only(rows, whole)).sum(-1, True, dtype=torch.float64)
    count = max(int(top_k[top_k < logits.shape[1]].max(initial=0)) + _TIES, _CANDIDATES)
    return _draw_from_first(count, logits, best, rows, top_k, mass)


def _draw_from_first(
    count: int,
    logits: torch.Tensor,
    best: torch.Tensor,
    rows: SamplingRows,
    top_k: npt.NDArray[np.int64],
    mass: torch.Tensor,
) -> torch.Tensor:
    """The same from each row's `count` likeliest tokens; for rows that would keep all those, from more.

    `mass` is [L, 1] the weight of the row's whole vocabulary where top_k takes all of it, else 0.
    """
    count = min(count, logits.shape[1])
    candidates = logits.topk(count, dim=-1)
    kept = _keep_top_k(candidates.values, _weights(candidates.values, best, rows), top_k)
    kept = _keep_top_p(kept, mass, rows.top_p)
    token_ids, order = candidates.indices.sort(dim=-1)
    reached = kept.gather(1, order).cumsum(dim=-1, dtype=torch.float64)
    drawn = token_ids.gather(1, _invert(reached, _uniform(rows, logits.device)))[:, 0]
    more = np.flatnonzero((kept[:, -1] > 0).cpu().numpy())
    if count < logits.shape[1] and more.size:
        index = torch.from_numpy(more).to(logits.device)
        rest = (logits[index], best[index], _only(rows, more), top_k[more], mass[index])
        drawn[index] = _draw_from_first(count * 8, *rest)
    return drawn


def _keep_top_k(logits: torch.Tensor, weights: torch.Tensor, top_k: npt.NDArray[np.int64]) -> torch.Tensor:
    """The weights of [L, K] descending logits, 0 for those below the k-th."""
    last = torch.from_numpy(np.minimum(top_k, logits.shape[1]) - 1).to(logits.device)[:, None]
    return weights.masked_fill(logits < logits.gather(1, last), 0.0)


def _keep_top_p(weights: torch.Tensor, mass: torch.Tensor, top_p: npt.NDArray[np.float64]) -> torch.Tensor:
    """The [L, K] descending weights, 0 for those below the one at which they together reach top_p of their mass.

    That is [L, 1] `mass`, or their sum where it is 0.
    """
    share = torch.from_numpy(top_p).to(weights.device)[:, None]
    reached = weights.cumsum(dim=-1, dtype=torch.float64)
    mass = torch.where(mass > 0, mass, reached[:, -1:])
    last = torch.searchsorted(reached, share * mass).clamp_(max=weights.shape[1] - 1)
    least = weights.gather(1, last).masked_fill_(share >= 1.0, 0.0)
    return weights.masked_fill(weights < least, 0.0)


def _invert(reached: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """[L, 1] the first of each row of [L, K] sums that exceeds that share of the last; any if they are not finite."""
    return torch.searchsorted(reached, uniform * reached[:, -1:], right=True).clamp_(max=reached.shape[1] - 1)
