"""Computes log-probabilities and embeddings of prompts from final hidden states: the torch side of readings."""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np
import torch

from ..interface import ModelRunner
from .batch_table import Scheduled
from .readings import EmbedReading, ScoreReading, Scores

MOST_LOGITS = 1 << 22
"""Most logits of prompts' rows (rows times vocabulary) in memory at once: a whole prompt's would take too much."""


class PromptOutputs:
    """Computes the readings of a step's sequences; all scores together."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._most_rows = max(1, MOST_LOGITS // runner.vocab_size)

    def read(self, batch: List[Scheduled], hidden: torch.Tensor | None) -> None:
        """Read the [H, hidden_size] states of rows that `batch`, not yet noted as computed, needs."""
        if hidden is None:
            return
        scored: list[tuple[ScoreReading, torch.Tensor]] = []
        counts = [len(scheduled.rows_read) for scheduled in batch]
        for scheduled, rows in zip(batch, hidden.split(counts), strict=True):
            reading = scheduled.sequence.reading
            if len(rows) and isinstance(reading, EmbedReading):
                reading.add(rows.double().sum(dim=0).cpu().numpy(), len(rows))
            elif len(rows) and isinstance(reading, ScoreReading):
                scored.append((reading, rows))
        if scored:
            self._score(scored)

    def _score(self, scored: list[tuple[ScoreReading, torch.Tensor]]) -> None:
        targets = [token for reading, rows in scored for token in reading.targets(len(rows))]
        hidden = torch.cat([rows for _, rows in scored])
        num_top = max(reading.num_top for reading, _ in scored)
        scores = self._scores(hidden, torch.tensor(targets, device=hidden.device), num_top)
        start = 0
        for reading, rows in scored:
            reading.add(scores.part(start, start + len(rows), reading.num_top))
            start += len(rows)

    def _scores(self, hidden: torch.Tensor, targets: torch.Tensor, num_top: int) -> Scores:
        parts = [
            _scores_of(self._runner.logits(rows), tokens, num_top)
            for rows, tokens in zip(hidden.split(self._most_rows), targets.split(self._most_rows), strict=True)
        ]
        logprobs, greedy, top_ids, top_logprobs = (
            torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)
        )
        return Scores(logprobs, greedy, top_ids.astype(np.int64), top_logprobs)


def _scores_of(logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> tuple[torch.Tensor, ...]:
    """([N] log-softmax of the targets, [N] whether none is likelier, [N, K] likeliest tokens, [N, K] theirs)."""
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, targets[:, None])
    top = logits.topk(max(1, min(num_top, logits.shape[1])), dim=-1)
    greedy = chosen[:, 0] >= top.values[:, 0]
    return (chosen - total)[:, 0], greedy, top.indices, top.values - total
