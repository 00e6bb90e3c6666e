"""A decoder's parameters as the compiled step wants them: packed matrices and norms, one layer at a time in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch.nn.functional import embedding

from .decoder_inputs import Embedding
from .decoder_plan import DecoderPlan, LayerPlan, LinearPlan, NormPlan
from .matrix_ops import Format
from .packed_matrix import PackedMatrix
from .parameters import Parameters
from .step_emitter import NormWeights


class DecoderWeights:
    """Takes the parameters of a part of the model, and packs them."""

    def __init__(self, parameters: Parameters, fmt: Format, dtype: torch.dtype) -> None:
        self._parameters = parameters
        self._fmt = fmt
        self._dtype = dtype
        self._taken: dict[str, torch.Tensor] = {}

    def take(self, part: LayerPlan | LinearPlan | NormPlan) -> None:
        """Read the parameters of `part`, and drop all others."""
        self._have([name for name, _ in part.shapes])

    def head_and_embedding(self, plan: DecoderPlan) -> tuple[PackedMatrix, Embedding]:
        """The packed head, and the embedding: from the head's own panels if it is tied and not rounded."""
        positions = self._copy_of(plan.positions.weight) if plan.positions else None
        if plan.is_tied and self._fmt != Format.INT8:
            self.take(plan.head)
            head = self.pack([plan.head])
            return head, Embedding(plan, head.rows, positions, self._dtype)
        table = self._copy_of(plan.tokens)
        self._taken = {plan.tokens: table}
        if not plan.is_tied:
            self.take(plan.head)
        head = self.pack([plan.head])
        return head, Embedding(plan, lambda token_ids: embedding(token_ids, table), positions, self._dtype)

    def norm(self, plan: NormPlan) -> NormWeights:
        weight = self._float(plan.weight) + plan.stored_less
        bias = self._float(plan.bias) if plan.bias else torch.zeros_like(weight)
        return NormWeights(plan.kind, weight, bias, plan.epsilon)

    def head_norms(self, layer: LayerPlan) -> tuple[NormWeights, NormWeights] | None:
        if layer.head_norms is None:
            return None
        query, key = layer.head_norms
        return self.norm(query), self.norm(key)

    def pack(self, linears: Sequence[LinearPlan]) -> PackedMatrix:
        """Linears that read the same rows, each padded to whole panels."""
        biases = [self._float(linear.bias) if linear.bias else None for linear in linears]
        return PackedMatrix([self._taken[linear.weight] for linear in linears], biases, self._fmt, self._dtype)

    def pack_joined(self, linears: Sequence[LinearPlan]) -> PackedMatrix:
        """The same without padding between them."""
        weight = torch.cat([self._taken[linear.weight] for linear in linears])
        biases = [self._float(linear.bias) if linear.bias else torch.zeros(linear.out_features) for linear in linears]
        return PackedMatrix([weight], [torch.cat(biases)], self._fmt, self._dtype)

    def _have(self, names: Collection[str]) -> None:
        self._taken = {}
        self._taken = self._parameters.take(names)

    def _copy_of(self, name: str) -> torch.Tensor:
        """A copy of one parameter, in its own memory."""
        self._have([name])
        return self._taken[name].to(self._dtype, copy=True)

    def _float(self, name: str) -> torch.Tensor:
        """A float32 copy, rounded as the model's dtype rounds."""
        return self._taken[name].to(self._dtype).to(torch.float32, copy=True)
