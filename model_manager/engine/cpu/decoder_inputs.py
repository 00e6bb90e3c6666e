"""What a step's rows start from: the embeddings of their tokens, and the angles by which their heads are rotated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import embedding

from .decoder_plan import DecoderPlan, Rope

Lookup = Callable[[torch.Tensor], torch.Tensor]
"""[T] token ids to [T, hidden_size]."""


class Embedding:
    """Embeds tokens and, of models that learned them, positions."""

    def __init__(self, plan: DecoderPlan, lookup: Lookup, positions: torch.Tensor | None, dtype: torch.dtype) -> None:
        """`positions` is their table, [rows, hidden_size]."""
        self._lookup = lookup
        self._scale = torch.tensor(plan.embedding_scale, dtype=dtype)
        self._positions = positions
        self._offset = plan.positions.offset if plan.positions else 0

    def __call__(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T] token ids and positions to [T, hidden_size]."""
        rows = self._lookup(token_ids)
        if self._scale != 1:
            rows = rows * self._scale
        if self._positions is not None:
            rows = rows + embedding(positions + self._offset, self._positions)
        return rows


def angles(rope: Rope, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[T] positions to float32 cosines and sines, each [T, half the rotated dimensions]."""
    turned = positions[:, None].float() * rope.inverse_frequencies
    return turned.cos() * rope.scale, turned.sin() * rope.scale
