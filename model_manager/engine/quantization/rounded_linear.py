"""Linear layers whose weights are held in few bits: int8, int4 in groups, fp8. Only forward.

int8 and fp8 round each row of the input too and multiply in that format; int4 multiplies in bfloat16. Knows no model
and not how the weights were rounded. int8 on a CPU has a layer of its own, in torch/linear.py.
"""

from __future__ import annotations

import torch
from torch import nn

from .rounding import RoundedGroups, RoundedRows, round_rows

INT4_GROUPS = (32, 64, 128)
"""Lengths of groups that the int4 product takes."""
_INT_MM_ROWS = 32
"""cuBLAS multiplies int8 from 17 rows on, of a count that is a multiple of 8."""


class Int8Linear(nn.Module):
    """Weights in int8 with a scale for each output; the input is rounded to int8 row by row."""

    def __init__(self, weight: RoundedRows, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.steps.shape
        self._weight = weight.steps.contiguous()
        self._scales = weight.scales.float()
        self._bias = _own(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        rows = round_rows(x.reshape(-1, self.in_features), torch.int8)
        count = rows.steps.shape[0]
        missing = max(0, _INT_MM_ROWS - count) if count <= _INT_MM_ROWS else -count % 8
        padded = nn.functional.pad(rows.steps, (0, 0, 0, missing))
        product = torch._int_mm(padded, self._weight.t())[:count].float()
        product = product * rows.scales.unsqueeze(1) * self._scales
        return _finish(product, self._bias, x)


class Int4Linear(nn.Module):
    """Weights in 4 bits, in groups; the input and the product are bfloat16.

    `order` [in_features] is the input's column that each column of the weight belongs to, if not its own.
    """

    def __init__(self, weight: RoundedGroups, bias: torch.Tensor | None, order: torch.Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.steps.shape
        assert fits_int4(self.out_features, self.in_features, weight.group), (weight.steps.shape, weight.group)
        self._group = weight.group
        self._weight = _pack_int4(weight.steps)
        pairs = torch.stack([weight.scales, weight.middles], dim=-1)
        self._scales_and_middles = pairs.transpose(0, 1).contiguous().bfloat16()
        self._bias = _own(bias)
        self._order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        rows = x.reshape(-1, self.in_features).bfloat16()
        if self._order is not None:
            rows = rows[:, self._order]
        multiply = (
            torch.ops.aten._weight_int4pack_mm_for_cpu if x.device.type == "cpu" else torch.ops.aten._weight_int4pack_mm
        )
        product: torch.Tensor = multiply(rows, self._weight, self._group, self._scales_and_middles)
        return _finish(product, self._bias, x)


class Fp8Linear(nn.Module):
    """Weights in float8_e4m3fn with a scale for each output; the input is rounded likewise, row by row."""

    def __init__(self, weight: RoundedRows, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.steps.shape
        self._weight = weight.steps.contiguous()
        self._scales = weight.scales.float().unsqueeze(0)
        self._bias = _own(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        rows = round_rows(x.reshape(-1, self.in_features), torch.float8_e4m3fn)
        product = torch._scaled_mm(
            rows.steps,
            self._weight.t(),
            scale_a=rows.scales.unsqueeze(1),
            scale_b=self._scales,
            out_dtype=torch.bfloat16,  # the only format that takes scales by row
        )
        return _finish(product, self._bias, x)


def fits_int4(out_features: int, in_features: int, group: int) -> bool:
    """Whether the int4 product takes a weight of these sizes."""
    return group in INT4_GROUPS and in_features % group == 0 and out_features % 16 == 0


def fits_16(out_features: int, in_features: int) -> bool:
    """Whether the int8 and fp8 products of a GPU take a weight of these sizes."""
    return out_features % 16 == 0 and in_features % 16 == 0


def _pack_int4(steps: torch.Tensor) -> torch.Tensor:
    """[out, in] in the layout that the device's product reads."""
    packed: torch.Tensor
    if steps.device.type == "cpu":
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(steps.int(), 1)
    else:
        pairs = (steps[:, ::2] << 4) | steps[:, 1::2]
        packed = torch.ops.aten._convert_weight_to_int4pack(pairs, 8 if steps.shape[1] % 128 == 0 else 2)
    return packed


def _own(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.detach().clone()  # a loaded one is a view of a mapped file


def _finish(product: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    product = product if bias is None else product + bias
    return product.to(x.dtype).view(*x.shape[:-1], -1)
