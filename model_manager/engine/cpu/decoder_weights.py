"""A decoder's parameters as the compiled step wants them: packed matrices, norms and the embedding, one layer at a time
in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.nn.functional import embedding

from .decoder_plan import DecoderPlan, LayerPlan, LinearPlan, NormPlan
from .matrix_ops import Format
from .packed_matrix import PackedMatrix, pack, padded
from .parameter_reader import Parameters
from .step_emitter import NormWeights

Tensors = Sequence[torch.Tensor]
Lookup = Callable[[torch.Tensor], torch.Tensor]
"""[T] token ids to [T, hidden_size]."""


class KeptTensors(Protocol):
    """Tensors that an earlier load has made, or that this one makes for later ones."""

    def tensors(self, name: str, make: Callable[[], Tensors]) -> Tensors:
        """The tensors of that name: the kept ones, or those that `make` makes."""


class DecoderWeights:
    """Takes the parameters of a part of the model and packs them; kept tensors are neither read nor packed."""

    def __init__(
        self, parameters: Parameters, fmt: Format, dtype: torch.dtype, kept: KeptTensors | None = None
    ) -> None:
        self._parameters = parameters
        self._fmt = fmt
        self._dtype = dtype
        self._kept = kept
        self._wanted: list[str] = []
        self._read: dict[str, torch.Tensor] = {}

    def take(self, part: LayerPlan | LinearPlan | NormPlan) -> None:
        """Go on to the parameters of `part`, and drop all others."""
        self._want([name for name, _ in part.shapes])

    def head_and_embedding(self, plan: DecoderPlan) -> tuple[PackedMatrix, Embedding]:
        """The packed head, and the embedding: from the head's own panels if it is tied and not rounded."""
        positions = self._table(plan.positions.weight) if plan.positions else None
        if plan.is_tied and self._fmt != Format.INT8:
            self.take(plan.head)
            head = self.pack([plan.head])
            return head, Embedding(plan, head.rows, positions, self._dtype)
        table = self._table(plan.tokens)
        if not plan.is_tied:
            self.take(plan.head)
        head = self.pack([plan.head])
        return head, Embedding(plan, lambda token_ids: embedding(token_ids, table), positions, self._dtype)

    def norm(self, plan: NormPlan) -> NormWeights:
        weight, bias = self._made(plan.weight, lambda: self._norm(plan))
        return NormWeights(plan.kind, weight, bias, plan.epsilon)

    def head_norms(self, layer: LayerPlan) -> tuple[NormWeights, NormWeights] | None:
        if layer.head_norms is None:
            return None
        query, key = layer.head_norms
        return self.norm(query), self.norm(key)

    def pack(self, linears: Sequence[LinearPlan]) -> PackedMatrix:
        """Linears that read the same rows, each padded to whole panels."""

        def packed() -> Tensors:
            biases = [self._float(linear.bias) if linear.bias else None for linear in linears]
            weights = [self._parameter(linear.weight) for linear in linears]
            return pack(weights, biases, self._fmt, self._dtype).tensors

        return self._matrix(linears, [padded(linear.out_features) for linear in linears], packed)

    def pack_joined(self, linears: Sequence[LinearPlan]) -> PackedMatrix:
        """The same without padding between them."""

        def packed() -> Tensors:
            weight = torch.cat([self._parameter(linear.weight) for linear in linears])
            biases = [self._float(each.bias) if each.bias else torch.zeros(each.out_features) for each in linears]
            return pack([weight], [torch.cat(biases)], self._fmt, self._dtype).tensors

        return self._matrix(linears, [padded(sum(linear.out_features for linear in linears))], packed)

    def _matrix(self, linears: Sequence[LinearPlan], columns: list[int], packed: Callable[[], Tensors]) -> PackedMatrix:
        first = linears[0]
        return PackedMatrix(self._fmt, first.in_features, columns, *self._made(f"{first.weight} packed", packed))

    def _norm(self, plan: NormPlan) -> Tensors:
        weight = self._float(plan.weight) + plan.stored_less
        return weight, self._float(plan.bias) if plan.bias else torch.zeros_like(weight)

    def _table(self, name: str) -> torch.Tensor:
        """A copy of one parameter, in its own memory."""
        self._want([name])
        (table,) = self._made(name, lambda: [self._parameter(name).to(self._dtype, copy=True)])
        return table

    def _made(self, name: str, make: Callable[[], Tensors]) -> Tensors:
        return self._kept.tensors(name, make) if self._kept else make()

    def _want(self, names: list[str]) -> None:
        self._wanted, self._read = names, {}

    def _parameter(self, name: str) -> torch.Tensor:
        if not self._read:
            self._read = self._parameters.take(self._wanted)
        return self._read[name]

    def _float(self, name: str) -> torch.Tensor:
        """A float32 copy, rounded as the model's dtype rounds."""
        return self._parameter(name).to(self._dtype).to(torch.float32, copy=True)


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
