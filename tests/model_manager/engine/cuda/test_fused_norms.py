"""Norms that are RMS norms become one kernel, and others stay what they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GemmaConfig, GemmaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from millrace.model_manager.engine.cuda.fused_norms import fuse_norms

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_rms_norm_is_replaced_and_answers_as_before(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model: Any = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    model = model.to(dtype)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        before = model(ids).logits.float()
        assert fuse_norms(model) == 2 * 4 + 1
        after = model(ids).logits.float()
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(after, before, atol=tolerance, rtol=tolerance)


def test_a_norm_that_adds_one_to_its_weight_stays() -> None:
    model: Any = GemmaForCausalLM(GemmaConfig(**SIZES))
    assert fuse_norms(model) == 0
