"""Linear layers whose weights oneDNN lays out for this processor once, instead of on every call.

On two AVX-512 cores the packed product runs more than twice as fast as torch's default in float32. Layers that read the
same input become one product (merged_linears.py). Knows no model: it replaces whatever `nn.Linear` it finds.
"""

from __future__ import annotations

import logging

import torch
from torch import nn

from ..quantization.precision import reads_weight
from .merged_linears import merge

log = logging.getLogger(__name__)


class PackedLinear(nn.Module):
    """`nn.Linear` with its weight in oneDNN's own layout; only forward, only on a CPU."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, batch_hint: int) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), batch_hint)
        self._bias = None if bias is None else bias.detach().clone()  # a loaded one is a view of a mapped file

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, "none", [], "")
        return product


def can_pack(dtype: torch.dtype) -> bool:
    """True if this processor and torch have packed linears for `dtype`; else the log says so."""
    present = torch.backends.mkldnn.is_available() and dtype in (torch.float32, torch.bfloat16) and _packs(dtype)
    if not present:
        log.warning("linear layers are not packed: this processor's oneDNN has none for %s", dtype)
    return present


def _packs(dtype: torch.dtype) -> bool:
    """Tried, as oneDNN asks for other instructions in each release: bfloat16 wants more than AVX2."""
    try:
        PackedLinear(torch.zeros(1, 1, dtype=dtype), None, 1)
    except RuntimeError:
        return False
    return True


def pack_linears(model: nn.Module, batch_hint: int) -> int:
    """Replace every `nn.Linear` in `model` by a packed one, freeing each weight as it goes; how many there were.

    Layers without weights, and those whose weight other code reads, stay. A weight that is shared with an embedding
    stays there, unpacked, for the lookups. `batch_hint` is the number of rows that the layout is chosen for.
    """
    count = 0
    for parent in [module for module in model.modules() if type(module) is not nn.Linear]:
        count += merge(parent, lambda weight, bias: PackedLinear(weight, bias, batch_hint))
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.numel() and not reads_weight(parent, name):
                setattr(parent, name, PackedLinear(child.weight, child.bias, batch_hint))
                count += 1
    return count
