"""Every kind of model that is tested token for token, as a small config of random weights, and what is said of it.

`python -m tests.model_manager.engine.tested_models` writes the table of them in docs/MODELS.md.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from tests.model_manager.engine.random_checkpoints import (
    POSITIONS,
    common,
)

_HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "output_router_logits": False}


def llama_dynamic_rope() -> PreTrainedConfig:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    return LlamaConfig(**_HEADS, rope_parameters=rope, **common())


def mistral() -> PreTrainedConfig:
    return MistralConfig(**_HEADS, sliding_window=24, **common())


def mixtral() -> PreTrainedConfig:
    return MixtralConfig(**_HEADS, **_EXPERTS, num_local_experts=4, sliding_window=None, **common())


def qwen3() -> PreTrainedConfig:
    return Qwen3Config(**_HEADS, head_dim=32, **common())


def qwen3_moe() -> PreTrainedConfig:
    sizes: dict[str, Any] = {"num_experts": 6, "moe_intermediate_size": 32, "norm_topk_prob": True, "head_dim": 16}
    return Qwen3MoeConfig(**_HEADS, **_EXPERTS, **sizes, mlp_only_layers=[1], **common())


def gemma() -> PreTrainedConfig:
    return GemmaConfig(**_HEADS | {"num_key_value_heads": 1}, head_dim=32, **common())


def gemma2() -> PreTrainedConfig:
    caps: dict[str, Any] = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 40}
    return Gemma2Config(**_HEADS, **caps, head_dim=32, sliding_window=24, **common())


def gemma3() -> PreTrainedConfig:
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    fields: dict[str, Any] = {"layer_types": kinds, "rope_parameters": rope, "query_pre_attn_scalar": 40}
    return Gemma3TextConfig(**_HEADS, **fields, head_dim=32, sliding_window=24, **common())


def phi3() -> PreTrainedConfig:
    return Phi3Config(**_HEADS, sliding_window=40, **common())


def phi3_long() -> PreTrainedConfig:
    rope: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    rope |= {"short_factor": [1.1, 1.2, 1.3, 1.4], "long_factor": [4.0] * 4}
    lengths = {"original_max_position_embeddings": POSITIONS, "max_position_embeddings": 8 * POSITIONS}
    return Phi3Config(**_HEADS, rope_parameters=rope, **common() | lengths)


def gpt2() -> PreTrainedConfig:
    sizes: dict[str, Any] = {"n_layer": 3, "n_head": 4, "n_embd": 64, "n_positions": POSITIONS}
    return GPT2Config(**sizes, scale_attn_by_inverse_layer_idx=True, **common("vocab_size"))


def gpt_neox() -> PreTrainedConfig:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    return GPTNeoXConfig(num_attention_heads=2, hidden_size=64, rope_parameters=rope, **common())


def gpt_neox_sequential() -> PreTrainedConfig:
    return GPTNeoXConfig(num_attention_heads=4, hidden_size=64, use_parallel_residual=False, **common())


def falcon_multi_query() -> PreTrainedConfig:
    return FalconConfig(num_attention_heads=4, hidden_size=64, bias=True, **common())


def falcon_new_decoder() -> PreTrainedConfig:
    return FalconConfig(
        num_attention_heads=4, num_kv_heads=2, hidden_size=64, new_decoder_architecture=True, **common()
    )


def granite() -> PreTrainedConfig:
    factors: dict[str, Any] = {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.1,
        "logits_scaling": 4.0,
    }
    return GraniteConfig(**_HEADS, **factors, **common())


def olmo2() -> PreTrainedConfig:
    return Olmo2Config(**_HEADS, **common())


def smollm3() -> PreTrainedConfig:
    return SmolLM3Config(**_HEADS, no_rope_layers=[1, 0, 1], **common())


def gpt_oss() -> PreTrainedConfig:
    sizes: dict[str, Any] = {"num_local_experts": 4, "head_dim": 16, "sliding_window": 24}
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}  # fmt: skip
    return GptOssConfig(**_HEADS, **_EXPERTS, **sizes, rope_parameters=rope, **common())
