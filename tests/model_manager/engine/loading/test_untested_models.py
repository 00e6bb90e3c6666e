"""Models that are not in the table. Each has something that loading once stumbled over; greedy outputs equal the
outputs of transformers' own generation.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3nTextConfig,
    HunYuanMoEV1Config,
    LongcatFlashConfig,
    ModernBertDecoderConfig,
    PreTrainedConfig,
)

from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.wire.config import ModelConfig
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.random_checkpoints import POSITIONS, VOCAB, common
from tests.model_manager.engine.whole_engines import greedy_tokens, load_engine

_HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}


def hunyuan_moe() -> PreTrainedConfig:
    """Its router reads the weight of its layer."""
    return HunYuanMoEV1Config(**_HEADS, head_dim=16, num_experts=4, moe_topk=2, **common())


def longcat() -> PreTrainedConfig:
    """As HunYuan; two attentions a layer."""
    latent: dict[str, Any] = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
    experts: dict[str, Any] = {"moe_topk": 2, "n_routed_experts": 4, "zero_expert_num": 2, "expert_ffn_hidden_size": 32}
    sizes: dict[str, Any] = {"num_layers": 2, "head_dim": 8, "v_head_dim": 16, "ffn_hidden_size": 96}
    fields = common("vocab_size", "max_position_embeddings")
    return LongcatFlashConfig(**_HEADS | {"num_key_value_heads": 4}, **latent, **experts, **sizes, **fields)


def modernbert_decoder() -> PreTrainedConfig:
    """Its output layer is called decoder."""
    sizes: dict[str, Any] = {"num_attention_heads": 4, "hidden_size": 64, "local_attention": 16}
    sizes |= {"global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3}
    return ModernBertDecoderConfig(**sizes, **common())


def gemma3n() -> PreTrainedConfig:
    """Has a size for each layer."""
    return _gemma3n(0)


def gemma3n_sharing() -> PreTrainedConfig:
    """Its last layers attend to the keys and values of earlier ones."""
    return _gemma3n(2)


def _gemma3n(shared: int) -> PreTrainedConfig:
    kinds = ["sliding_attention", "full_attention"] * 2
    inputs: dict[str, Any] = {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 16}
    sizes = common() | {"num_hidden_layers": 4, "intermediate_size": [96] * 4, "sliding_window": 16}
    layers: dict[str, Any] = {"layer_types": kinds, "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0]}
    return Gemma3nTextConfig(
        **_HEADS, head_dim=16, laurel_rank=8, num_kv_shared_layers=shared, **inputs, **layers, **sizes
    )


_CASES: list[tuple[Callable[[], PreTrainedConfig], dict[str, Any]]] = [
    *((make, {}) for make in (hunyuan_moe, longcat, modernbert_decoder, gemma3n, gemma3n_sharing)),
    *((make, {"quantization": "int8"}) for make in (hunyuan_moe, longcat)),
    *((make, {"max_loras": 1}) for make in (hunyuan_moe, longcat)),
]


@pytest.mark.parametrize(("make", "settings"), _CASES)
def test_an_untested_model_is_answered_as_transformers_does(
    tmp_path: Path, make: Callable[[], PreTrainedConfig], settings: dict[str, Any]
) -> None:
    """Rounded and with adapters, that it is served."""
    torch.set_num_threads(1)
    model = random_checkpoints.write(tmp_path, make())
    budgets: dict[str, Any] = {"max_num_batched_tokens": 40, "max_num_seqs": 4, "num_threads": 1}
    config = ModelConfig(model="small", kv_cache_gib=0.01, **budgets, **settings)
    chance = random.Random(3)
    prompts = [[chance.randrange(4, VOCAB) for _ in range(length)] for length in (1, 9, 40)]
    outputs = greedy_tokens(load_engine(tmp_path, config), [(prompt, 20) for prompt in prompts])
    assert {len(tokens) for tokens in outputs} == {20}
    if not settings:
        assert outputs == [random_checkpoints.greedy(model, prompt, 20) for prompt in prompts]
        assert max(len(set(tokens)) for tokens in outputs) > 5


def test_a_model_has_as_many_positions_as_its_config_says(tmp_path: Path) -> None:
    random_checkpoints.write(tmp_path, gemma3n())
    assert (
        load_model(ModelConfig(model="small", kv_cache_gib=0.01, num_threads=1), tmp_path).info.max_model_len
        == POSITIONS
    )
