"""Quantized checkpoints, written here in each tool's format, answer as transformers does with what they are worth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.engine.quantization.rounding import round_rows
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.errors import ModelCorrupt
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.quantization.test_stored_formats import bitsandbytes_parts, gptq_parts, int32_fields
from tests.model_manager.engine.whole_engines import engine_of, greedy_tokens

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]
"""A layer's parts, and what they are worth."""

_QUESTIONS = ("What is 17 + 25?", "What is the capital of Mexico?", "Repeat: kraib, 4711")
_NEW_TOKENS = 12
_END = 1
_GROUP = 32


def _gptq(weight: torch.Tensor) -> Stored:
    steps, zeros, scales = _in_4_bits(weight)
    return gptq_parts(steps, zeros, scales, 4), _worth(steps, zeros, scales)


def _gptq_in_order_of_importance(weight: torch.Tensor) -> Stored:
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(0))
    steps, zeros, scales = _in_4_bits(weight[:, order])
    back = order.argsort()
    parts = gptq_parts(steps[:, back].contiguous(), zeros, scales, 4)
    parts["g_idx"] = (back // _GROUP).int()
    return parts, _worth(steps, zeros, scales)[:, back]


def _gptq_in_8_bits(weight: torch.Tensor) -> Stored:
    scales = _widest(weight) / 127
    steps = (weight.reshape(*scales.shape, _GROUP) / scales.unsqueeze(-1)).round().long() + 128
    zeros = torch.full(scales.shape, 128)
    return gptq_parts(steps.flatten(1), zeros, scales, 8), _worth(steps.flatten(1), zeros, scales)


def _packed(weight: torch.Tensor) -> Stored:
    scales = _widest(weight) / 7.5
    steps = (weight.reshape(*scales.shape, _GROUP) / scales.unsqueeze(-1)).round().clamp(-8, 7).flatten(1).long() + 8
    shape = torch.tensor(weight.shape)
    parts = {"weight_packed": int32_fields(steps, 4), "weight_scale": scales, "weight_shape": shape}
    return parts, _worth(steps, torch.full(scales.shape, 8), scales)


def _int8(weight: torch.Tensor) -> Stored:
    rows = round_rows(weight, torch.int8)
    return {"weight": rows.steps, "weight_scale": rows.scales.unsqueeze(1)}, rows.values()


def _fp8(weight: torch.Tensor) -> Stored:
    blocks = [weight.shape[0] // 32, weight.shape[1] // 32]
    scales = weight.reshape(blocks[0], 32, blocks[1], 32).abs().amax((1, 3)) / 448
    each = scales.repeat_interleave(32, 0).repeat_interleave(32, 1)
    steps = (weight / each).to(torch.float8_e4m3fn)
    return {"weight": steps, "weight_scale_inv": scales}, steps.float() * each


def _nf4(weight: torch.Tensor) -> Stored:
    table = torch.linspace(-1, 1, 16)
    largest = weight.reshape(-1, 64).abs().amax(-1)
    codes = ((weight.reshape(-1, 64) / largest.unsqueeze(1) + 1) * 7.5).round().long()
    worth = (table[codes] * largest.unsqueeze(1)).reshape(weight.shape)
    return bitsandbytes_parts(codes.reshape(weight.shape), table, largest), worth


_KINDS: dict[str, tuple[Callable[[torch.Tensor], Stored], dict[str, Any], str]] = {
    "gptq": (_gptq, {"quant_method": "gptq", "bits": 4}, "int4"),
    "gptq, mixed": (_gptq_in_order_of_importance, {"quant_method": "gptq", "bits": 4, "desc_act": True}, "int4"),
    "gptq, 8 bits": (_gptq_in_8_bits, {"quant_method": "gptq", "bits": 8}, "none"),
    "packed": (_packed, {"quant_method": "compressed-tensors", "format": "pack-quantized"}, "int4"),
    "int8": (_int8, {"quant_method": "compressed-tensors", "format": "int-quantized"}, "int8"),
    "fp8": (_fp8, {"quant_method": "fp8", "weight_block_size": [32, 32]}, "none"),
    "nf4": (_nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}, "none"),
}
"""How layers are stored, what config.json says, and what the engine holds them in."""


@pytest.mark.parametrize("kind", list(_KINDS))
def test_a_quantized_checkpoint_answers_as_what_it_is_worth(tmp_path: Path, kind: str) -> None:
    wanted = _write(tmp_path, kind)
    outputs, held_in = _generate(tmp_path)
    assert held_in == _KINDS[kind][2]
    assert outputs == wanted


def test_what_a_quantized_checkpoint_is_worth_can_be_rounded_otherwise(tmp_path: Path) -> None:
    wanted = _write(tmp_path, "gptq")
    assert _generate(tmp_path, quantization="int8") == (wanted, "int8")


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        (None, r"model\.layers\.2\.mlp\.up_proj lacks scales"),
        (torch.ones(5, 7), r"the parts of model\.layers\.2\.mlp\.up_proj do not belong together"),
    ],
)
def test_a_layer_without_its_parts_is_named(tmp_path: Path, scales: torch.Tensor | None, message: str) -> None:
    _write(tmp_path, "gptq")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.2.mlp.up_proj.scales"]
    more = {} if scales is None else {"model.layers.2.mlp.up_proj.scales": scales}
    save_file(tensors | more, file, {"format": "pt"})
    with pytest.raises(ModelCorrupt, match=message):
        _generate(tmp_path)


def _write(folder: Path, kind: str) -> list[list[int]]:
    """Write the embedded model with its inner layers stored so; what transformers answers with what they are worth."""
    store, about, _ = _KINDS[kind]
    source = resolve(EMBEDDED_MODEL)
    model: Any = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear and name != "lm_head":
            parts, worth = store(module.weight.detach())
            del tensors[f"{name}.weight"]
            tensors |= {f"{name}.{part}": tensor.contiguous() for part, tensor in parts.items()}
            module.weight.data = worth
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"quantization_config": about}
    (folder / "config.json").write_text(json.dumps(config))
    model.generation_config.eos_token_id = None
    return [_to_the_end(random_checkpoints.greedy(model, prompt, _NEW_TOKENS)) for prompt in _prompts()]


def _generate(folder: Path, **settings: Any) -> tuple[list[list[int]], str]:
    """The engine's greedy outputs, and what it says that layers are held in."""
    config = ModelConfig(model="small", dtype="float32", device="cpu", num_threads=1, kv_cache_gib=0.05, **settings)
    loaded = load_model(config, folder)
    outputs = greedy_tokens(engine_of(loaded, config), [(prompt, _NEW_TOKENS) for prompt in _prompts()])
    return [_to_the_end(tokens) for tokens in outputs], loaded.info.quantization


def _to_the_end(tokens: list[int]) -> list[int]:
    """Up to the end of the sequence; what a model says beyond it means nothing."""
    return tokens[: tokens.index(_END) + 1] if _END in tokens else tokens


def _prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(resolve(EMBEDDED_MODEL) / "tokenizer.json"))
    chats = [f"<s><|user|>{question}<|assistant|>" for question in _QUESTIONS]
    return [tokenizer.encode(chat, add_special_tokens=False).ids for chat in chats]


def _in_4_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Steps [out, in], zeros and scales [out, groups]."""
    grouped = weight.reshape(weight.shape[0], -1, _GROUP)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(0, 15)
    steps = (grouped / scales.unsqueeze(-1)).round() + zeros.unsqueeze(-1)
    return steps.clamp(0, 15).flatten(1).long(), zeros.long(), scales


def _widest(weight: torch.Tensor) -> torch.Tensor:
    return weight.reshape(weight.shape[0], -1, _GROUP).abs().amax(-1).half().float()


def _worth(steps: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (steps - zeros.repeat_interleave(_GROUP, 1)) * scales.half().float().repeat_interleave(_GROUP, 1)
