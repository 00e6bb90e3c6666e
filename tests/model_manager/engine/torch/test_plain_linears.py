"""Layers that are linear under another name compute the same once they are plain."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.pytorch_utils import Conv1D

from millrace.model_manager.engine.torch.plain_linears import make_linears_plain


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        transposed: Any = Conv1D
        self.parts = nn.Sequential(transposed(24, 8), nn.ReLU(), FalconLinear(24, 16), FalconLinear(16, 4, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.parts(x)
        return result


@torch.inference_mode()
def test_a_model_computes_the_same_with_plain_linears() -> None:
    torch.manual_seed(0)
    model, x = _Model(), torch.randn(2, 5, 8)
    wanted = model(x)
    make_linears_plain(model)
    assert [type(part) for part in model.parts] == [nn.Linear, nn.ReLU, nn.Linear, nn.Linear]
    torch.testing.assert_close(model(x), wanted)
