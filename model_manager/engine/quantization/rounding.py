"""Numbers rounded to few bits with a scale that several of them share, and what they are worth afterwards.

Knows no layer and no cache: only tensors whose last dimension is what is multiplied and added up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_MIDDLE = 8
"""The step of 0 .. 15 whose value is a group's `middles`."""
_PARTS = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Parts of a group's range that are tried: values outside are clipped, values inside get finer steps."""


@dataclass(frozen=True)
class RoundedRows:
    """Rows with a scale each: row r is steps[r] * scales[r]."""

    steps: torch.Tensor
    """[..., n] int8 or float8_e4m3fn."""
    scales: torch.Tensor
    """[...] float32."""

    def values(self) -> torch.Tensor:
        """[..., n] float32."""
        return self.steps.float() * self.scales.unsqueeze(-1)


@dataclass(frozen=True)
class RoundedGroups:
    """A matrix in 4 bits, in groups of a row: element [o, i] is (steps[o, i] - 8) * scales[o, g] + middles[o, g]."""

    steps: torch.Tensor
    """[out, in] uint8, 0 .. 15."""
    scales: torch.Tensor
    """[out, groups], all groups of a row being of one length."""
    middles: torch.Tensor
    """[out, groups]"""

    @property
    def group(self) -> int:
        return self.steps.shape[1] // self.scales.shape[1]

    def values(self) -> torch.Tensor:
        """[out, in] float32."""
        scales, middles = (part.float().repeat_interleave(self.group, dim=1) for part in (self.scales, self.middles))
        return (self.steps.float() - _MIDDLE) * scales + middles


def round_rows(rows: torch.Tensor, to: torch.dtype) -> RoundedRows:
    """Round each row of [..., n] to int8 or float8_e4m3fn, symmetric; its largest value sets the scale.

    The scale is NaN if a value is not finite, so that this is not lost.
    """
    rows = rows.float()
    most = 127.0 if to == torch.int8 else torch.finfo(to).max
    largest = rows.abs().amax(-1) + (rows * 0.0).sum(-1)
    factors = torch.full_like(largest, most) / largest
    steps = (rows * factors.unsqueeze(-1)).nan_to_num(0.0).clamp(-most, most)
    return RoundedRows((steps.round() if to == torch.int8 else steps).to(to), largest / most)


def round_groups(matrix: torch.Tensor, group: int) -> RoundedGroups:
    """Round [out, in] to 4 bits. Each group of `group` values in a row has a scale and a middle of its own.

    Several ranges around a group's middle are tried; the range with the least squared error is taken. Scales and
    middles are rounded to bfloat16, because the products read them in bfloat16.
    """
    grouped = matrix.float().unflatten(1, (-1, group))
    low, high = grouped.amin(-1), grouped.amax(-1)
    errors = torch.stack([_error(grouped, *_grid(low, high, part)) for part in _PARTS])
    scales, middles = _grid(low, high, torch.tensor(_PARTS, device=matrix.device)[errors.argmin(0)])
    return RoundedGroups(_steps(grouped, scales, middles).flatten(1).to(torch.uint8), scales, middles)


def _grid(low: torch.Tensor, high: torch.Tensor, part: float | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and middles that spread 16 steps over a part of low .. high."""
    scales = ((high - low) * part / 15).clamp_min(torch.finfo(torch.bfloat16).tiny).bfloat16()
    middles = (high + low + scales.float()) / 2  # steps 0 and 15 lie 8 below and 7 above it
    return scales, middles.bfloat16()


def _steps(grouped: torch.Tensor, scales: torch.Tensor, middles: torch.Tensor) -> torch.Tensor:
    steps = (grouped - middles.float().unsqueeze(-1)) / scales.float().unsqueeze(-1)
    return (steps.round() + _MIDDLE).clamp(0, 15)


def _error(grouped: torch.Tensor, scales: torch.Tensor, middles: torch.Tensor) -> torch.Tensor:
    """[out, groups] squared error."""
    steps = _steps(grouped, scales, middles)
    values = (steps - _MIDDLE) * scales.float().unsqueeze(-1) + middles.float().unsqueeze(-1)
    return (values - grouped).square().sum(-1)
