"""Packed linear layers compute what nn.Linear computes, and keep one copy of the weights."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

from millrace.model_manager.engine.torch.linear import PackedLinear, can_pack, pack_linears
from millrace.model_manager.engine.torch.merged_linears import SharedLinear


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
    if not can_pack(dtype):
        pytest.skip(f"this processor's oneDNN packs no {dtype}")
    torch.manual_seed(rows)
    model = _FeedForward(activation).to(dtype)
    x = torch.randn(1, rows, 24).to(dtype)
    wanted = model(x)
    assert pack_linears(model, batch_hint=64) == 2
    torch.testing.assert_close(model(x), wanted, atol=tolerance, rtol=tolerance)


class _Experts(nn.Module):
    """A router that reads its layer's weight, and no shared expert, which is one without columns."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(24, 4)
        self.gate_proj, self.up_proj = nn.Linear(24, 0, bias=False), nn.Linear(24, 0, bias=False)
        self.down_proj = nn.Linear(0, 24, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        routed = nn.functional.linear(x, self.router.weight).sum(-1, keepdim=True)
        result: torch.Tensor = self.down_proj(self.gate_proj(x) * self.up_proj(x)) + routed
        return result


@torch.inference_mode()
def test_layers_whose_weight_other_code_reads_and_layers_without_weights_are_left_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of initializing nothing
        model = _Experts()
    x = torch.randn(1, 5, 24)
    wanted = model(x)
    assert pack_linears(model, 8) == 0
    assert torch.equal(model(x), wanted)


class _Attention(nn.Module):
    def __init__(self, biases: tuple[bool, bool, bool]) -> None:
        super().__init__()
        self.q_proj = nn.Linear(24, 32, bias=biases[0])
        self.k_proj = nn.Linear(24, 16, bias=biases[1])
        self.v_proj = nn.Linear(24, 8, bias=biases[2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)


@pytest.mark.parametrize("biases", [(True, True, True), (False, False, False), (True, False, True)])
@torch.inference_mode()
def test_layers_that_read_the_same_input_compute_the_same_together(biases: tuple[bool, bool, bool]) -> None:
    model = _Attention(biases)
    first, second = torch.randn(1, 5, 24), torch.randn(1, 3, 24)
    wanted = [model(first), model(second)]
    assert pack_linears(model, 8) == 3
    assert isinstance(model.q_proj, SharedLinear) == (len(set(biases)) == 1)
    for _ in range(2):
        torch.testing.assert_close(model(first), wanted[0])
        torch.testing.assert_close(model(second), wanted[1])


@torch.inference_mode()
def test_a_shared_product_serves_its_layers_in_any_order_and_number() -> None:
    model = _Attention((True, True, True))
    x, other = torch.randn(1, 4, 24), torch.randn(1, 4, 24)
    calls = [
        ("k_proj", x),
        ("q_proj", other),
        ("q_proj", x),
        ("q_proj", x),
        ("v_proj", x),
        ("k_proj", x),
        ("v_proj", x),
    ]
    wanted = [getattr(model, name)(tensor) for name, tensor in calls]
    pack_linears(model, 8)
    for (name, tensor), result in zip(calls, wanted, strict=True):
        torch.testing.assert_close(getattr(model, name)(tensor), result)


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
    packed = PackedLinear(torch.zeros(50, 16), None, 8)
    assert (packed.in_features, packed.out_features) == (16, 50)


def test_a_format_that_cannot_be_packed_is_known_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert can_pack(torch.float32)
    assert not can_pack(torch.float64)
    assert "not packed" in caplog.text
