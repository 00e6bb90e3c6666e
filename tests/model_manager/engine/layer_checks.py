"""Kernels of small layers against transformers' code: `TRITON_INTERPRET=1 python -m …layer_checks NAMES`."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from transformers import GemmaConfig, GemmaForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.cohere import modeling_cohere
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from millrace.model_manager.engine.cuda import fused_layers
from tests.model_manager.engine.triton_checks import DEVICE, INTERPRETED, report

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 40,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
}
DTYPES = (torch.float32,) if INTERPRETED else (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


def a_model_answers_as_before() -> None:
    for dtype in DTYPES:
        _compare(Qwen3ForCausalLM(Qwen3Config(**SIZES)), dtype, {"norms": 2 * 4 + 1, "gates": 2, "rotations": 1})


def weights_that_are_what_exceeds_one_and_another_activation() -> None:
    for dtype in DTYPES:
        _compare(GemmaForCausalLM(GemmaConfig(**SIZES)), dtype, {"norms": 2 * 2 + 1, "gates": 2, "rotations": 1})


def what_no_kernel_computes_stays() -> None:
    config = GPTNeoXConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                           num_attention_heads=2)  # fmt: skip
    _compare(GPTNeoXForCausalLM(config), torch.float32, {"norms": 0, "gates": 0})
    own = modeling_cohere.apply_rotary_pos_emb  # turns neighbours, not halves
    assert fused_layers._rotation_of(modeling_cohere.__name__, (4, 2, 16), torch.zeros(1, device=DEVICE)) is None
    assert modeling_cohere.apply_rotary_pos_emb is own


def rows_that_lie_in_a_wider_product() -> None:
    product = torch.randn(1, 7, 11 * 24).to(DEVICE)
    heads, weight = product[..., 24 : 7 * 24].view(1, 7, 6, 24), torch.rand(24).to(DEVICE)
    wanted = torch.nn.functional.rms_norm(heads, (24,), weight, 1e-6)
    torch.testing.assert_close(fused_layers.normed(weight, 1e-6, False, heads), wanted)
    gates, values = product[..., :130], product[..., 130:260]
    wanted = torch.nn.functional.silu(gates) * values
    torch.testing.assert_close(fused_layers.gated(gates, values, gelu=False), wanted)


def rows_in_any_number_and_width() -> None:
    for count, dim in ((1, 8), (1, 5000), (33, 128), (2, 2048), (300, 24)):
        states, weight = (3 * torch.randn(1, count, dim)).to(DEVICE), torch.rand(dim).to(DEVICE)
        wanted = torch.nn.functional.rms_norm(states, (dim,), weight, 1e-5)
        torch.testing.assert_close(fused_layers.normed(weight, 1e-5, False, states), wanted)
        wanted = torch.nn.functional.gelu(states, approximate="tanh") * weight
        got = fused_layers.gated(states, weight.expand_as(states), gelu=True)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def heads_in_any_number_and_width() -> None:
    own = fused_layers._Rotation(modeling_qwen3.__name__).own
    for dtype, (heads, kv_heads, dim) in itertools.product(DTYPES, ((1, 1, 2), (14, 2, 64), (3, 3, 80), (32, 8, 128))):
        angles = torch.randn(1, 5, dim // 2).repeat(1, 1, 2)
        given = [torch.randn(1, 5, count, dim).transpose(1, 2) for count in (heads, kv_heads)]
        given = [each.to(dtype) for each in (*given, angles.cos(), angles.sin())]
        rotated = fused_layers.rotated(*(each.to(DEVICE) for each in given))
        for got, wanted in zip(rotated, own(*given), strict=True):
            assert got.transpose(1, 2).is_contiguous()
            tolerance = TOLERANCE[dtype]
            torch.testing.assert_close(got.cpu(), wanted, atol=tolerance, rtol=tolerance)


class _Limited(Qwen3MLP):
    """As models that keep their gates within bounds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = self.act_fn(self.gate_proj(x).clamp(max=7.0))
        result: torch.Tensor = self.down_proj(gates * self.up_proj(x))
        return result


class _CentredRMSNorm(torch.nn.Module):
    """Takes the mean away first."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(40)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (40,), self.weight, None, self.eps)


def layers_that_differ_only_for_other_rows_stay() -> None:
    config = Qwen3Config(**SIZES)
    for dtype in (torch.float32, torch.bfloat16):
        for activation, is_known in (
            ("silu", True),
            ("gelu_pytorch_tanh", True),
            ("gelu", False),
            ("quick_gelu", False),
        ):
            part = Qwen3MLP(Qwen3Config(**SIZES, hidden_act=activation)).to(DEVICE, dtype)
            assert (fused_layers._gate_of(part, dtype) is not None) == is_known, activation
        assert fused_layers._gate_of(_Limited(config).to(DEVICE, dtype), dtype) is None
        assert fused_layers._norm_of(_CentredRMSNorm().to(DEVICE, dtype), dtype) is None


def a_large_weight_that_is_what_exceeds_one_counts_so() -> None:
    """Without the 1 the answer would be off by less than roundings in half precision come to."""
    for dtype in (torch.float32, torch.bfloat16):
        for plain in (GemmaRMSNorm, Qwen3RMSNorm):
            module = plain(40).to(DEVICE, dtype)
            torch.nn.init.constant_(module.weight, 60.0)
            fused: Any = fused_layers._norm_of(module, dtype)
            assert fused.args[2] == (plain is GemmaRMSNorm)


CHECKS = {
    check.__name__: check
    for check in (
        a_model_answers_as_before,
        weights_that_are_what_exceeds_one_and_another_activation,
        what_no_kernel_computes_stays,
        rows_that_lie_in_a_wider_product,
        rows_in_any_number_and_width,
        heads_in_any_number_and_width,
        layers_that_differ_only_for_other_rows_stay,
        a_large_weight_that_is_what_exceeds_one_counts_so,
    )
}


@torch.inference_mode()
def _compare(model: Any, dtype: torch.dtype, counts: dict[str, int]) -> None:
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5) if "norm" in name else torch.nn.init.normal_(parameter, std=0.2)
    model = model.to(DEVICE, dtype).eval()
    ids = torch.arange(20, device=DEVICE)[None]
    fused = fused_layers.fuse_layers(model)
    assert counts.items() <= fused.counts.items(), fused.counts
    with fused.undone():
        before = model(ids).logits.float()
    after = model(ids).logits.float()
    assert not torch.equal(after, before) or not any(counts.values()), "the kernels did not run"
    apart = (after - before).norm(dim=-1) / before.norm(dim=-1)
    assert float(apart.max()) < TOLERANCE[dtype], apart


if __name__ == "__main__":
    report(CHECKS)
