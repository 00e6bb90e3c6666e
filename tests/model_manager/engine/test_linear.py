"""Packed linear layers compute what nn.Linear computes, and keep one copy of the weights."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from model_manager.engine.linear import PackedLinear, can_pack, pack_linears


class _FeedForward(nn.Module):
    """Named as transformers names the parts of an OPT layer."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.fc1, self.activation_fn, self.fc2 = nn.Linear(24, 40), activation, nn.Linear(40, 24, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc2(self.activation_fn(self.fc1(x)))
        return result


@pytest.mark.parametrize("rows", [1, 3, 64, 200])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU()])
@torch.inference_mode()
def test_a_packed_model_computes_the_same(
    rows: int, dtype: torch.dtype, tolerance: float, activation: nn.Module
) -> None:
    torch.manual_seed(rows)
    model = _FeedForward(activation).to(dtype)
    x = torch.randn(1, rows, 24).to(dtype)
    wanted = model(x)
    assert pack_linears(model, batch_hint=64) == 2
    torch.testing.assert_close(model(x), wanted, atol=tolerance, rtol=tolerance)


def test_a_relu_after_fc1_moves_into_the_product_and_other_activations_stay() -> None:
    relu, gelu = _FeedForward(nn.ReLU()), _FeedForward(nn.GELU())
    pack_linears(relu, 8)
    pack_linears(gelu, 8)
    assert isinstance(relu.activation_fn, nn.Identity)
    assert isinstance(gelu.activation_fn, nn.GELU)


def test_the_unpacked_weight_is_given_up_unless_an_embedding_shares_it() -> None:
    model = nn.Module()
    model.embedding, model.head, model.own = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False), nn.Linear(16, 16)
    model.head.weight = model.embedding.weight
    shared, own = weakref.ref(model.head.weight), weakref.ref(model.own.weight)
    pack_linears(model, 8)
    gc.collect()
    assert own() is None
    assert shared() is model.embedding.weight


def test_a_packed_layer_says_its_sizes() -> None:
    packed = PackedLinear(torch.zeros(50, 16), None, 8, "none")
    assert (packed.in_features, packed.out_features) == (16, 50)


def test_a_format_that_cannot_be_packed_is_known_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert can_pack(torch.float32)
    assert not can_pack(torch.float64)
    assert "not packed" in caplog.text
