"""Weights of linear layers, laid out once as the kernels read them: panel after panel, each from first to last step.

Knows one matrix; not which layer it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from model_manager.engine.matrix_ops import PANEL, Format

_MOST = 127.0
_ZERO_POINT = 128


def can_multiply(fmt: Format) -> bool:
    """Whether this processor has the instructions of that format."""
    has = torch.cpu.get_capabilities()
    extra = {Format.INT8: "avx512_vnni", Format.BFLOAT16: "avx512_bf16", Format.FLOAT32: "avx512_f"}[fmt]
    return bool(has.get("avx512_f", False) and has.get(extra, False))


class PackedMatrix:
    """The transposed weights [out_features, in_features] of layers that read the same input, side by side.

    Each part is padded to whole panels; the padding's results are 0. int8 weights are rounded to the nearest of 255
    steps, of a size that each output has for itself.
    """

    def __init__(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None], fmt: Format) -> None:
        """`weights` are float32 or bfloat16, in_features a multiple of 4."""
        self.in_features = weights[0].shape[1]
        assert self.in_features % 4 == 0
        self.fmt = fmt
        self.steps = self.in_features * fmt // 4
        self.columns = [-(-weight.shape[0] // PANEL) * PANEL for weight in weights]
        self.bias = torch.cat([_padded_bias(weight, bias) for weight, bias in zip(weights, biases, strict=True)])
        self.scales = torch.zeros(len(self.bias) if fmt == Format.INT8 else 0)
        self.offsets = torch.zeros(len(self.scales), dtype=torch.int32)
        self.data = torch.empty(sum(self.columns) * self.in_features * fmt, dtype=torch.uint8)
        start = 0
        for weight, columns in zip(weights, self.columns, strict=True):
            part = slice(start, start + columns)
            self._place(weight, part)
            start += columns

    @property
    def panels(self) -> int:
        """Of all parts together."""
        return sum(self.columns) // PANEL

    def _place(self, weight: torch.Tensor, part: slice) -> None:
        if self.fmt == Format.INT8:
            weight = weight.float()
            scales = weight.abs().amax(dim=1).clamp_(min=1e-30) / _MOST
            weight = (weight / scales[:, None]).round_().to(torch.int8)
            self.scales[part][: len(scales)] = scales
            self.offsets[part][: len(scales)] = _ZERO_POINT * weight.sum(dim=1, dtype=torch.int32)
        else:
            weight = weight.to(torch.bfloat16 if self.fmt == Format.BFLOAT16 else torch.float32)
        together = 4 // self.fmt  # elements of a row that one step takes
        panels = (part.stop - part.start) // PANEL
        row = self.in_features * self.fmt
        target = self.data[part.start * row : part.stop * row].view(weight.dtype)
        target = target.view(panels, self.in_features // together, PANEL, together)
        whole = len(weight) // PANEL
        source = weight[: whole * PANEL].view(whole, PANEL, -1, together)
        target[:whole] = source.permute(0, 2, 1, 3)
        if whole < panels:
            target[whole] = 0
            rest = weight[whole * PANEL :]
            target[whole, :, : len(rest)] = rest.view(len(rest), -1, together).permute(1, 0, 2)


def _padded_bias(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    padded = torch.zeros(-(-weight.shape[0] // PANEL) * PANEL)
    if bias is not None:
        padded[: len(bias)] = bias.float()
    return padded
