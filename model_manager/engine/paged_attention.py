"""Attention over a paged KV cache: the interface. torch/, cpu/ and cuda/ implement it.

A block holds the keys and values of `block_size` consecutive tokens of one sequence, for every layer; a sequence's
block table says where its blocks lie. Each implementation has its own layout inside a block. Knows nothing of requests,
prefixes or scheduling: only slots, tables and lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from .interface import StepInput


@dataclass(frozen=True)
class AttentionLayout:
    """Sizes that every layer of a model has, and the window of each."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    vocab_size: int

    @property
    def num_layers(self) -> int:
        return len(self.windows)


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a KV cache, the format of incoming keys and values, and the stored format."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int
    block_size: int
    dtype: torch.dtype
    """Format of queries, keys and values as they come."""
    rounded: torch.dtype | None = None
    """What keys and values are rounded to: int8 or float8_e4m3fn, with a float32 scale for each token and head."""

    @property
    def stored(self) -> torch.dtype:
        """Format of the cache's elements."""
        return self.rounded or self.dtype

    @property
    def bytes_per_page(self) -> int:
        """Keys and values of one KV head in one block of one layer, with their scales."""
        scale = 4 if self.rounded else 0
        return 2 * self.block_size * (self.head_dim * self.stored.itemsize + scale)

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of one block, all layers."""
        return self.num_layers * self.num_kv_heads * self.bytes_per_page


@dataclass(frozen=True, eq=False)
class AttentionOptions:
    """Options of one layer's attention beyond plain softmax(q k) v; the same for every step."""

    scale: float
    """Factor of the scores."""
    window: int | None = None
    """How many positions back a token sees, itself included; None is all of them."""
    softcap: float | None = None
    """Scores become softcap x tanh(score / softcap), before anything is masked (Gemma 2)."""
    sinks: torch.Tensor | None = None
    """[heads] one further logit a head that takes its share of the softmax and has no value (gpt-oss)."""


class PagedAttention(Protocol):
    """A KV cache and attention over it, on one device."""

    def begin(self, step: StepInput) -> None:
        """Set a step's tables; every layer of the step is attended with them."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        """Store the step's keys and values [T, kv heads, dim], then attend query [T, heads, dim]; like query."""


@runtime_checkable
class ReleasingAttention(PagedAttention, Protocol):
    """Paged attention that can do without the memory of its last blocks."""

    bytes_per_block: int

    def give_back(self, first_block: int) -> None:
        """Give the memory of this block and all after it back to the system; they take memory again once written."""
