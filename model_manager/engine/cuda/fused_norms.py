"""RMS norms as one kernel each: transformers computes them in half a dozen, which on a GPU is most of what they cost.

Knows no architecture: a module is taken for an RMS norm by its name, and replaced only if it answers as one.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.functional import rms_norm

_ROWS = 4
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""A few roundings of the format: the scale is applied before the result is rounded, not after."""


@torch.inference_mode()
def fuse_norms(model: torch.nn.Module) -> int:
    """Replace every RMS norm in `model` by torch's own kernel; returns how many there were."""
    count = 0
    for module in model.modules():
        epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        weight = getattr(module, "weight", None)
        if type(module).__name__.endswith("RMSNorm") and epsilon is not None and isinstance(weight, torch.Tensor):
            fused = functools.partial(_fused, weight, float(epsilon))
            if _agree(module, fused, weight):
                module.forward = fused
                count += 1
    return count


def _fused(weight: torch.Tensor, epsilon: float, hidden_states: torch.Tensor) -> torch.Tensor:
    return rms_norm(hidden_states, weight.shape, weight, epsilon)


def _agree(module: torch.nn.Module, fused: Any, weight: torch.Tensor) -> bool:
    """True if both agree on some rows; other norms, as Gemma's, add 1 to their weight."""
    random = torch.Generator().manual_seed(0)
    rows = (3 * torch.randn(_ROWS, weight.shape[-1], generator=random)).to(weight.device, weight.dtype)
    tolerance = _TOLERANCE.get(weight.dtype, 0.0)
    return weight.ndim == 1 and torch.allclose(module(rows), fused(rows), atol=tolerance, rtol=tolerance)
