"""What a step's rows start from: the embeddings of their tokens, and the angles by which their heads are rotated."""

from __future__ import annotations

import torch
from torch.nn.functional import embedding

from model_manager.engine.cpu.decoder_plan import DecoderPlan, Rope
from model_manager.engine.cpu.parameters import Parameters


class Embedding:
    """Embeds tokens and, of models that learned them, positions."""

    def __init__(self, plan: DecoderPlan, parameters: Parameters, dtype: torch.dtype) -> None:
        self.tokens = _own(parameters.take([plan.tokens])[plan.tokens], dtype)
        """[vocab_size, hidden_size]"""
        self._scale = torch.tensor(plan.embedding_scale, dtype=dtype)
        self._offset = plan.positions.offset if plan.positions else 0
        self._positions: torch.Tensor | None = None
        if plan.positions:
            name = plan.positions.weight
            self._positions = _own(parameters.take([name])[name], dtype)

    def __call__(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T] token ids and positions to [T, hidden_size]."""
        rows: torch.Tensor = embedding(token_ids, self.tokens)
        if self._scale != 1:
            rows = rows * self._scale
        if self._positions is not None:
            rows = rows + embedding(positions + self._offset, self._positions)
        return rows


def angles(rope: Rope, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[T] positions to float32 cosines and sines, each [T, half the rotated dimensions]."""
    turned = positions[:, None].float() * rope.inverse_frequencies
    return turned.cos() * rope.scale, turned.sin() * rope.scale


def _own(stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy that holds no file."""
    return stored.to(dtype, copy=True)
