"""Samples one token for each row of logits, by that row's own parameters and random number.

Knows rows; not sequences. A row's token depends on nothing outside it: tokens of equal probability are kept or dropped
together, and what is kept is added up in the order of token ids, so that neither company nor ties change the outcome.
docs/reference/sampling.md has the order in which parameters are applied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...wire.errors import InvalidRequest, NonFiniteLogits
from ...wire.logprobs import LEAST, Logprobs
from ..interface import Longs
from .cpu_sampling import CpuSampling, Sampled
from .host_copy import HostCopy, to_device
from .kernel_record import IMPOSSIBLE, NOT_FINITE
from .logit_rows import SamplingRows
from .torch_sampling import drawn, processed


@dataclass(frozen=True)
class Samples:
    """The outcome for L rows."""

    token_ids: list[int]
    finite: list[bool]
    """False where the logits hold NaN or +infinity, or nothing but -infinity: that row's token means nothing."""
    possible: list[bool]
    """False where the row's own rules leave no token: that row's token means nothing."""
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    """Log-probabilities by row, for the rows that want them."""

    def check(self, row: int) -> None:
        """Raise what is wrong with the row's request, if its token means nothing."""
        if not self.finite[row]:
            raise NonFiniteLogits("the model computed NaN or infinity for its next token")
        if not self.possible[row]:
            names = "allowed_token_ids, bad_words, logit_bias and min_tokens"
            raise InvalidRequest(f"{names} together leave no token that the model could generate next")


class LaunchedSamples:
    """Samples that the device of the logits computes; it may have other work queued already."""

    def __init__(self, token_ids: torch.Tensor, samples: Callable[[], Samples]) -> None:
        self.token_ids = token_ids
        """[L] on that device."""
        self._samples = samples

    def get(self) -> Samples:
        """The samples; waits for them."""
        return self._samples()


class Sampler:
    """Greedy rows take the likeliest token; others are drawn by inverse transform from what their parameters leave."""

    def __init__(self) -> None:
        self._cpu: CpuSampling | None = None

    def warm_up(self, device: str) -> None:
        """Compile what the device needs, before the first step."""
        if device.startswith("cpu"):
            self._cpu = self._cpu or CpuSampling(torch.get_num_threads())

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> Samples:
        """One token id for each row of [L, V] float32 logits, each without gaps, which stay as they are."""
        return self.launch(logits, rows).get()

    @torch.inference_mode()
    def launch(self, logits: torch.Tensor, rows: SamplingRows) -> LaunchedSamples:
        """Begin to sample; on a GPU the host waits for nothing, and what comes next may overwrite the logits."""
        self.warm_up(logits.device.type)
        if self._cpu is None or not self._cpu.takes(rows):
            return launch_by_torch(logits, rows)
        sampled = self._cpu.sample(logits.numpy(), rows)
        return LaunchedSamples(torch.from_numpy(sampled.token_ids), functools.partial(_samples, sampled, rows))


def _samples(sampled: Sampled, rows: SamplingRows) -> Samples:
    counts = rows.settings["num_logprobs"].tolist()
    return Samples(
        sampled.token_ids.tolist(),
        (sampled.status != NOT_FINITE).tolist(),
        (sampled.status != IMPOSSIBLE).tolist(),
        {row: sampled.logprobs(row, count) for row, count in enumerate(counts) if count >= 0},
    )


def launch_by_torch(logits: torch.Tensor, rows: SamplingRows) -> LaunchedSamples:
    """As `Sampler.launch`, in torch's operations, on any device."""
    best, token_ids = logits.max(dim=-1)  # NaN counts as the greatest, so `best` alone tells what is not finite
    finite = possible = torch.isfinite(best)
    ruled = processed(logits, rows)
    if ruled is not logits:
        best, token_ids = ruled.max(dim=-1)
        possible = best > -torch.inf
    random = np.flatnonzero(rows.settings["temperature"] > 0)
    if random.size:
        index = to_device(random, logits.device)
        token_ids[index] = drawn(ruled[index], best[index], rows.only(random))
    counts = rows.settings["num_logprobs"]
    outcome = HostCopy([torch.stack((token_ids, finite, possible)), *_logprobs(logits, token_ids, counts)])
    return LaunchedSamples(token_ids, lambda: _arrived(outcome.get(), counts))


def _arrived(outcome: list[npt.NDArray[Any]], counts: Longs) -> Samples:
    """Samples from the copied arrays: tokens and flags, then the results of `_logprobs`."""
    (tokens, finite, possible), *logprobs = outcome
    columns = zip(*(column.tolist() for column in logprobs), strict=True)
    with_logprobs = np.flatnonzero(counts >= 0).tolist()
    entries = {row: _entry(int(counts[row]), *each) for row, each in zip(with_logprobs, columns, strict=True)}
    return Samples(tokens.tolist(), (finite != 0).tolist(), (possible != 0).tolist(), entries)


def _logprobs(logits: torch.Tensor, token_ids: torch.Tensor, counts: Longs) -> list[torch.Tensor]:
    """Log-probabilities for the N rows that want them, from the unchanged logits: [N, 1] of the token, [N] whether the
    token is the likeliest, [N, K] the likeliest tokens, [N, K] theirs. An empty list if N is 0.
    """
    with_logprobs = np.flatnonzero(counts >= 0)
    if not with_logprobs.size:
        return []
    index = to_device(with_logprobs, logits.device)
    scores = logits[index].log_softmax(dim=-1).clamp_(min=LEAST)
    own = scores.gather(1, token_ids[index, None])
    greedy = own[:, 0] >= scores.max(dim=-1).values
    top = scores.topk(min(int(counts.max()), scores.shape[1]), dim=-1)
    return [own, greedy, top.indices, top.values]


def _entry(count: int, own: list[float], greedy: bool, top_token_ids: list[int], top: list[float]) -> Logprobs:
    return Logprobs(own, [greedy], [top_token_ids[:count]] if count else [], [top[:count]] if count else [])
