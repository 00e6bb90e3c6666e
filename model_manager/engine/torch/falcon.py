"""Falcon's attention over the paged KV cache: transformers' own does not call its attention functions.

Replaces the attention of Falcon's layers where transformers looks it up; weights and everything else are transformers'.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.falcon import modeling_falcon

from .attention_hook import IMPLEMENTATION

_OWN = ("eager", "sdpa")


class PagedFalconAttention(modeling_falcon.FalconAttention):
    """Takes the fused projection apart by heads, rotates and attends; keys and values are not repeated."""

    def forward(self, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        """[1, T, hidden_size] to the same shape, with the attention that the config names."""
        implementation = self.config._attn_implementation
        if implementation in _OWN:
            return super().forward(hidden_states, *arguments, **options)
        query, key, value = (states.transpose(1, 2) for states in self._split(self.query_key_value(hidden_states)))
        query, key = modeling_falcon.apply_rotary_pos_emb(query, key, *options["position_embeddings"])
        attend, scale = ALL_ATTENTION_FUNCTIONS[implementation], self.inv_norm_factor
        attended, _ = attend(self, query, key, value, options["attention_mask"], scaling=scale)
        return self.dense(attended.flatten(2)), None

    def _split(self, fused: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[1, T, heads, dim] queries, keys and values; the new architecture lays them out KV head by KV head."""
        if not self.new_decoder_architecture:
            return tuple(self._split_heads(fused))
        groups = fused.unflatten(-1, (self.num_kv_heads, -1, self.head_dim))
        return groups[..., :-2, :].flatten(2, 3), groups[..., -2, :], groups[..., -1, :]


def register() -> None:
    """Register this attention for Falcon's layers under `IMPLEMENTATION`."""
    modeling_falcon.FALCON_ATTENTION_CLASSES[IMPLEMENTATION] = PagedFalconAttention
