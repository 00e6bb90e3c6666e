"""Sampling in torch's own operations, on any device: whole rows at a time, exact, without shortcuts.

The reference for the compiled kernel, and what runs where that does not. Knows rows; not sequences.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..interface import Longs
from .host_copy import to_device
from .logit_rows import Listed, MaskBits, SamplingRows
from .random_numbers import uniforms

MOST_WEIGHTS = {"cuda": 2**26, "cpu": 2**23}
"""Most weights (rows times vocabulary) that are sorted and summed at once; few rows leave most of a GPU idle."""
BYTES_A_WEIGHT = 48
"""Sorting and summing hold so many bytes for each weight: copies of it, its rank, its place in the order, a sum."""


def processed(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """[L, V] logits after penalties, bias and masks; the same tensor if no row has any."""
    penalised = np.flatnonzero(has_penalty(rows.settings))
    listed = (rows.biased, rows.allowed, rows.banned)
    masked = np.flatnonzero(rows.mask_rows >= 0)
    if not (penalised.size or masked.size or any(each.rows.size for each in listed)):
        return logits
    logits = logits.clone()
    if penalised.size:
        index = _on(penalised, logits)
        logits[index] = _penalised(logits[index], rows, penalised)
    bias = _on(rows.biased.values, logits)
    logits.index_put_((_on(rows.biased.rows, logits), _on(rows.biased.token_ids, logits)), bias, accumulate=True)
    logits = _listed(logits, rows.allowed, rows.banned)
    if masked.size:
        index = _on(masked, logits)
        logits[index] = _masked(logits[index], rows.masks[rows.mask_rows[masked]])
    return logits


def has_penalty(settings: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """[L] True if the row's own tokens change its logits."""
    repetition: npt.NDArray[np.bool_] = settings["repetition_penalty"] != 1
    repetition |= (settings["presence_penalty"] != 0) | (settings["frequency_penalty"] != 0)
    return repetition


def _penalised(logits: torch.Tensor, rows: SamplingRows, chosen: Longs) -> torch.Tensor:
    """Repetition (Keskar et al., arXiv:1909.05858) over prompt and output, then frequency and presence over output."""
    lengths, settings = rows.lengths[chosen], rows.settings[chosen]
    places = np.arange(lengths.max())
    history = _on(rows.tokens[rows.token_rows[chosen], : lengths.max()].astype(np.int64), logits)
    past = _on(places < lengths[:, None], logits)
    generated = _on((places >= settings["num_prompt_tokens"][:, None]) & (places < lengths[:, None]), logits)
    seen = torch.zeros_like(logits).scatter_add_(1, history, past.float()) > 0
    counts = torch.zeros_like(logits).scatter_add_(1, history, generated.float())
    repetition, frequency, presence = (
        _on(np.ascontiguousarray(settings[f"{name}_penalty"]), logits)[:, None]
        for name in ("repetition", "frequency", "presence")
    )
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    return torch.where(seen, repeated, logits) - counts * frequency - (counts > 0) * presence


def _listed(logits: torch.Tensor, allowed: Listed, banned: Listed) -> torch.Tensor:
    if allowed.rows.size:
        chosen, places = np.unique(allowed.rows, return_inverse=True)
        forbidden = torch.ones(len(chosen), logits.shape[1], dtype=torch.bool, device=logits.device)
        forbidden[_on(places, logits), _on(allowed.token_ids, logits)] = False
        index = _on(chosen, logits)
        logits[index] = logits[index].masked_fill(forbidden, -torch.inf)
    logits[_on(banned.rows, logits), _on(banned.token_ids, logits)] = -torch.inf
    return logits


def _masked(logits: torch.Tensor, masks: MaskBits) -> torch.Tensor:
    """Apply one mask to each of [N, V] logits."""
    octets = _on(masks.view(np.uint8), logits)
    bits = octets[:, :, None].bitwise_right_shift(torch.arange(8, dtype=torch.uint8, device=logits.device)) & 1
    return logits.masked_fill(bits.flatten(1)[:, : logits.shape[1]] == 0, -torch.inf)


def drawn(logits: torch.Tensor, best: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """[L] token ids by inverse transform from what each row's parameters leave of [L, V]; `best` is their maximum."""
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    size = max(1, MOST_WEIGHTS[logits.device.type] // logits.shape[1])
    uniform = uniforms(rows.settings["seed"], rows.index)
    for start in range(0, len(logits), size):
        part = slice(start, start + size)
        kept = filtered_weights(logits[part], best[part], rows.settings[part])
        reached = kept.cumsum(dim=-1, dtype=torch.float64)
        aim = _on(uniform[part], logits)[:, None] * reached[:, -1:]
        found = torch.searchsorted(reached, aim, right=True)[:, 0]
        tokens[part] = found.clamp_(max=logits.shape[1] - 1)
    return tokens


def filtered_weights(logits: torch.Tensor, best: torch.Tensor, settings: npt.NDArray[np.void]) -> torch.Tensor:
    """[L, V] exp((logit - best) / temperature), 0 for what top_k, top_p, min_p and typical_p cut, in that order.

    Tokens as likely as the last one kept are kept too, so that no order among equals is needed.
    """
    scaled = (logits - best[:, None]) / _column(settings["temperature"], logits)
    weights = scaled.exp()
    weights = _keep_top_k(weights, logits, settings["top_k"])
    weights = _keep_share(weights, logits, settings["top_p"])
    weights = weights.masked_fill(weights < _column(settings["min_p"], logits), 0.0)
    if (settings["typical_p"] >= 1).all():
        return weights
    return _keep_share(weights, -_surprise(weights, scaled), settings["typical_p"])


def _keep_top_k(weights: torch.Tensor, logits: torch.Tensor, top_k: Longs) -> torch.Tensor:
    vocab_size = logits.shape[1]
    if not ((top_k > 0) & (top_k < vocab_size)).any():
        return weights
    last = np.where(top_k > 0, np.minimum(top_k, vocab_size), vocab_size) - 1
    descending = logits.topk(int(last[last < vocab_size - 1].max()) + 1, dim=-1).values
    least = descending.gather(1, _column(np.minimum(last, descending.shape[1] - 1), logits))
    least = least.masked_fill(_column(last == vocab_size - 1, logits), -torch.inf)
    return weights.masked_fill(logits < least, 0.0)


def _keep_share(weights: torch.Tensor, ranks: torch.Tensor, share: npt.NDArray[np.float64]) -> torch.Tensor:
    """Keep the fewest weights, in descending order of `ranks`, that together reach `share` of the sum; all if `share`
    is 1.
    """
    if (share >= 1).all():
        return weights
    ranks = ranks.masked_fill(weights == 0, -torch.inf)
    descending, order = ranks.sort(dim=-1, descending=True)
    reached = weights.gather(1, order).cumsum(dim=-1, dtype=torch.float64)
    part = _column(share, weights)
    last = torch.searchsorted(reached, part * reached[:, -1:]).clamp_(max=weights.shape[1] - 1)
    least = descending.gather(1, last).masked_fill(part >= 1, -torch.inf)
    return weights.masked_fill(ranks < least, 0.0)


def _surprise(weights: torch.Tensor, scaled: torch.Tensor) -> torch.Tensor:
    """How far each token's information is from the distribution's entropy (Meister et al., arXiv:2202.00666).

    With p = w / sum(w), both -log p and the entropy hold the same log sum(w), which cancels.
    """
    information = -scaled.masked_fill(weights == 0, 0.0).double()
    entropy = (weights * information).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)
    return (information - entropy).abs()


def _on(values: npt.NDArray[np.generic], logits: torch.Tensor) -> torch.Tensor:
    return to_device(np.ascontiguousarray(values), logits.device)


def _column(values: npt.NDArray[np.generic], logits: torch.Tensor) -> torch.Tensor:
    return _on(values, logits)[:, None]
