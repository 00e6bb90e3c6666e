"""Turns linear layers of other classes into `nn.Linear`, so that packing and rounding find them too.

Knows two: GPT-2's `Conv1D`, which holds its weight transposed, and Falcon's `FalconLinear`, which only rounds twice.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.pytorch_utils import Conv1D


def make_linears_plain(model: nn.Module) -> None:
    """Replace every such layer of `model` in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                setattr(parent, name, _linear(child.weight.t().contiguous(), child.bias))
            elif isinstance(child, FalconLinear):
                setattr(parent, name, _linear(child.weight, child.bias))


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """An `nn.Linear` with these very tensors, in eval mode."""
    out_features, in_features = weight.shape
    linear = nn.Linear(in_features, out_features, bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear.eval()
