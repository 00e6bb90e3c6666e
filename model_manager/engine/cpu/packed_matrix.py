"""Weights of linear layers, laid out once in the order in which the kernels read them: panel after panel, each from
first to last step.

Knows one matrix; not which layer it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from .matrix_ops import PANEL, Format

_MOST = 127.0
_ZERO_POINT = 128
_ROWS_AT_ONCE = 64 * PANEL
"""Rows of a weight that are laid out at a time, so that copies stay small."""


@dataclass(frozen=True)
class PackedMatrix:
    """The transposed weights [out_features, in_features] of layers that read the same input, side by side.

    Each part is padded to whole panels; the padding's results are 0. int8 weights are rounded to the nearest of 255
    steps, of a size that each output has for itself.
    """

    fmt: Format
    in_features: int
    columns: list[int]
    """Outputs of each part, with padding."""
    data: torch.Tensor
    """The panels' bytes."""
    scales: torch.Tensor
    offsets: torch.Tensor
    """Scales and offsets have an entry for each output in int8, and none in other formats."""
    bias: torch.Tensor

    @classmethod
    def empty(cls, in_features: int, columns: list[int], fmt: Format) -> Self:
        """A matrix without weights yet."""
        assert in_features % 4 == 0
        outputs = sum(columns)
        scales = torch.zeros(outputs if fmt == Format.INT8 else 0)
        offsets = torch.zeros(len(scales), dtype=torch.int32)
        data = torch.empty(outputs * in_features * fmt, dtype=torch.uint8)
        return cls(fmt, in_features, columns, data, scales, offsets, torch.zeros(outputs))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that it holds, in the order of its fields."""
        return self.data, self.scales, self.offsets, self.bias

    @property
    def steps(self) -> int:
        """Steps from a panel's first to its last."""
        return self.in_features * self.fmt // 4

    @property
    def panels(self) -> int:
        """Panels of all parts together."""
        return sum(self.columns) // PANEL

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """[N] outputs of a matrix that is not in int8 to their weights [N, in_features]."""
        assert self.fmt != Format.INT8
        steps = self.data.view(torch.int32).view(-1, self.steps, PANEL)[outputs // PANEL, :, outputs % PANEL]
        return steps.view(torch.bfloat16 if self.fmt == Format.BFLOAT16 else torch.float32)

    def place(self, weight: torch.Tensor, first: int) -> None:
        """Store the weights of outputs from `first` on, the beginning of a panel."""
        if self.fmt == Format.INT8:
            weight = self._rounded(weight.float(), slice(first, first + len(weight)))
        else:
            weight = weight.to(torch.bfloat16 if self.fmt == Format.BFLOAT16 else torch.float32)
        source = weight.contiguous().view(torch.int32)  # words of 4 bytes, which one step takes of a row
        target = self.data.view(torch.int32).view(-1, self.steps, PANEL)[first // PANEL :]
        whole = len(weight) // PANEL
        target[:whole] = source[: whole * PANEL].view(whole, PANEL, self.steps).transpose(1, 2)
        rest = source[whole * PANEL :]
        if len(rest):
            target[whole] = 0
            target[whole, :, : len(rest)] = rest.t()

    def _rounded(self, weight: torch.Tensor, outputs: slice) -> torch.Tensor:
        """Round float32 weights to steps; notes each output's scale and offset."""
        least, most = weight.aminmax(dim=1)
        scales = torch.maximum(-least, most).clamp_(min=1e-30) / _MOST
        rounded = (weight / scales[:, None]).round_()
        self.scales[outputs] = scales
        self.offsets[outputs] = _ZERO_POINT * (rounded @ torch.ones(self.in_features)).to(
            torch.int32
        )  # whole numbers below 2^24
        return rounded.to(torch.int8)


def pack(
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    fmt: Format,
    dtype: torch.dtype | None = None,
) -> PackedMatrix:
    """`weights` have in_features that are a multiple of 4; they are taken as they would be in `dtype`, by default their
    own.
    """
    matrix = PackedMatrix.empty(weights[0].shape[1], [padded(len(weight)) for weight in weights], fmt)
    first = 0
    for weight, bias, columns in zip(weights, biases, matrix.columns, strict=True):
        if bias is not None:
            matrix.bias[first : first + len(bias)] = bias.float()
        for start in range(0, len(weight), _ROWS_AT_ONCE):
            matrix.place(weight[start : start + _ROWS_AT_ONCE].to(dtype or weight.dtype), first + start)
        first += columns
    return matrix


def padded(outputs: int) -> int:
    """Columns of whole panels for so many outputs."""
    return -(-outputs // PANEL) * PANEL
