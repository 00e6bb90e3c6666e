"""From logits to one token for each row, by that row's own parameters and random number.

Knows rows; not sequences. A row's token depends on nothing outside it: tokens of equal probability are kept or dropped
together, and what is kept is added up in the order of token ids, so that neither company nor ties change the outcome.
docs/SAMPLING.md has the order in which parameters are applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from model_manager.engine.cpu_sampling import CpuSampling, Sampled
from model_manager.engine.sampling_record import IMPOSSIBLE, NOT_FINITE
from model_manager.engine.sampling_rows import SamplingRows
from model_manager.engine.torch_sampling import drawn, processed
from model_manager.wire.errors import InvalidRequest, NonFiniteLogits, RequestError
from model_manager.wire.logprobs import LEAST, Logprobs


@dataclass(frozen=True)
class Samples:
    """The outcome for L rows."""

    token_ids: list[int]
    finite: list[bool]
    """False where the logits hold NaN or +infinity, or nothing but -infinity: that row's token means nothing."""
    possible: list[bool]
    """False where the row's own rules leave no token: that row's token means nothing."""
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    """Of the rows that ask for them, by row."""

    def error(self, row: int) -> RequestError | None:
        """What is wrong with the row's request, if its token means nothing."""
        if not self.finite[row]:
            return NonFiniteLogits("the model computed NaN or infinity for its next token")
        if not self.possible[row]:
            names = "allowed_token_ids, bad_words, logit_bias and min_tokens"
            return InvalidRequest(f"{names} together leave no token that the model could generate next")
        return None


class Sampler:
    """Greedy rows take the likeliest token; others are drawn by inverse transform from what their parameters leave."""

    def __init__(self) -> None:
        self._cpu: CpuSampling | None = None

    def warm_up(self, device: str) -> None:
        """Compile what the device needs, rather than in the first step."""
        if device.startswith("cpu"):
            self._cpu = self._cpu or CpuSampling(torch.get_num_threads())

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> Samples:
        """One token id for each row of [L, V] float32 logits, each without gaps, which stay as they are."""
        self.warm_up(logits.device.type)
        if self._cpu is None:
            return sample_by_torch(logits, rows)
        return _samples(self._cpu.sample(logits.numpy(), rows), rows)


def _samples(sampled: Sampled, rows: SamplingRows) -> Samples:
    counts = rows.settings["num_logprobs"].tolist()
    return Samples(
        sampled.token_ids.tolist(),
        (sampled.status != NOT_FINITE).tolist(),
        (sampled.status != IMPOSSIBLE).tolist(),
        {row: sampled.logprobs(row, count) for row, count in enumerate(counts) if count >= 0},
    )


def sample_by_torch(logits: torch.Tensor, rows: SamplingRows) -> Samples:
    """The same in torch's operations, on any device."""
    best, token_ids = logits.max(dim=-1)  # NaN counts as the greatest, so `best` alone tells what is not finite
    finite = possible = torch.isfinite(best)
    ruled = processed(logits, rows)
    if ruled is not logits:
        best, token_ids = ruled.max(dim=-1)
        possible = best > -torch.inf
    random = np.flatnonzero(rows.settings["temperature"] > 0)
    if random.size:
        index = torch.from_numpy(random).to(logits.device)
        token_ids[index] = drawn(ruled[index], best[index], rows.only(random))
    tokens, are_finite, are_possible = torch.stack((token_ids, finite, possible)).tolist()  # one transfer
    return Samples(
        tokens, [bool(it) for it in are_finite], [bool(it) for it in are_possible], _logprobs(logits, tokens, rows)
    )


def _logprobs(logits: torch.Tensor, token_ids: list[int], rows: SamplingRows) -> dict[int, Logprobs]:
    """Log-probabilities by the logits alone, before anything was done to them."""
    counts = rows.settings["num_logprobs"]
    asked = np.flatnonzero(counts >= 0)
    if not asked.size:
        return {}
    scores = logits[torch.from_numpy(asked).to(logits.device)].log_softmax(dim=-1).clamp_(min=LEAST)
    chosen = torch.tensor([token_ids[row] for row in asked], device=logits.device)
    own = scores.gather(1, chosen[:, None])
    greedy = own[:, 0] >= scores.max(dim=-1).values
    top = scores.topk(min(int(counts.max()), scores.shape[1]), dim=-1)
    columns = (own.tolist(), greedy.tolist(), top.indices.tolist(), top.values.tolist())
    return {
        row: _entry(int(counts[row]), *each)
        for row, each in zip(asked.tolist(), zip(*columns, strict=True), strict=True)
    }


def _entry(count: int, own: list[float], greedy: bool, top_token_ids: list[int], top: list[float]) -> Logprobs:
    return Logprobs(own, [greedy], [top_token_ids[:count]] if count else [], [top[:count]] if count else [])
