"""Every kind of model that is tested token for token, as a small config of random weights, and what is said of it.

`python -m tests.model_manager.engine.tested_models` writes the table of them into docs/reference/models.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from transformers import (
    CohereConfig,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    GPT2Config,
    GPTBigCodeConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoConfig,
    OlmoeConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    StableLmConfig,
    Starcoder2Config,
)

from tests.model_manager.engine.random_checkpoints import (
    POSITIONS,
    common,
    llama_gqa,
    llama_one_kv_head,
    opt,
    opt_350m_like,
    qwen2,
    qwen2_sliding_window,
)

_ROOT = Path(__file__).parents[3]
TABLE_FILE = _ROOT / "docs/reference/models.md"
_BEGIN, _END = "<!-- table of tested models -->\n", "<!-- end of table -->\n"
_HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
_LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]


@dataclass(frozen=True)
class ModelCase:
    """One config. Configs of one architecture stand together, and its examples stand with the first of them."""

    architecture: str
    make: Callable[[], PreTrainedConfig]
    special: str
    examples: str = ""
    every_case: bool = True
    """Whether each case has a test of its own; otherwise one test is all of them at once."""


def llama_dynamic_rope() -> PreTrainedConfig:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    return LlamaConfig(**_HEADS, rope_parameters=rope, **common())


def mistral() -> PreTrainedConfig:
    return MistralConfig(**_HEADS, sliding_window=24, **common())


def mixtral() -> PreTrainedConfig:
    fields: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    return MixtralConfig(**_HEADS, **fields, **common())


def qwen2_moe() -> PreTrainedConfig:
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Qwen2MoeConfig(**_HEADS, **experts, shared_expert_intermediate_size=48, **common())


def qwen3() -> PreTrainedConfig:
    return Qwen3Config(**_HEADS, head_dim=32, **common())


def qwen3_moe() -> PreTrainedConfig:
    experts: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    experts |= {"norm_topk_prob": True, "mlp_only_layers": [1], "head_dim": 32}
    return Qwen3MoeConfig(**_HEADS, **experts, **common())


def gemma() -> PreTrainedConfig:
    return GemmaConfig(**_HEADS | {"num_key_value_heads": 1}, head_dim=32, **common())


def gemma2() -> PreTrainedConfig:
    fields: dict[str, Any] = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}
    fields |= {"query_pre_attn_scalar": 40, "head_dim": 32, "sliding_window": 24}
    return Gemma2Config(**_HEADS, **fields, **common())


def gemma3() -> PreTrainedConfig:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    fields: dict[str, Any] = {"layer_types": _LAYERS, "rope_parameters": rope, "query_pre_attn_scalar": 40}
    return Gemma3TextConfig(**_HEADS, **fields, head_dim=32, sliding_window=24, **common())


def gemma3_with_images() -> PreTrainedConfig:
    tower: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    tower |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    text = gemma3().to_dict() | {"tie_word_embeddings": True}
    tokens: dict[str, Any] = {"eos_token_id": None, "bos_token_id": 0, "pad_token_id": 1}
    return Gemma3Config(text_config=text, vision_config=tower, mm_tokens_per_image=4, **tokens)


def phi() -> PreTrainedConfig:
    return PhiConfig(num_attention_heads=4, hidden_size=64, **common())


def phi3() -> PreTrainedConfig:
    return Phi3Config(**_HEADS, sliding_window=40, **common())


def phi3_longrope() -> PreTrainedConfig:
    rope: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "factor": 8.0}
    rope |= {"short_factor": [1.1, 1.2, 1.3, 1.4], "long_factor": [4.0] * 4}
    rope |= {"original_max_position_embeddings": POSITIONS}
    lengths = {"original_max_position_embeddings": POSITIONS, "max_position_embeddings": 8 * POSITIONS}
    return Phi3Config(num_attention_heads=4, hidden_size=64, rope_parameters=rope, **common() | lengths)


def gpt2() -> PreTrainedConfig:
    sizes: dict[str, Any] = {"n_layer": 3, "n_head": 4, "n_embd": 64, "n_positions": POSITIONS}
    return GPT2Config(**sizes, scale_attn_by_inverse_layer_idx=True, **common("vocab_size"))


def gpt_bigcode() -> PreTrainedConfig:
    sizes: dict[str, Any] = {"n_layer": 3, "n_head": 4, "n_embd": 64, "n_positions": POSITIONS}
    return GPTBigCodeConfig(**sizes, **common("vocab_size"))


def gpt_neox() -> PreTrainedConfig:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    return GPTNeoXConfig(num_attention_heads=4, hidden_size=96, rope_parameters=rope, **common())


def gpt_neox_sequential() -> PreTrainedConfig:
    return GPTNeoXConfig(num_attention_heads=4, hidden_size=64, use_parallel_residual=False, **common())


def falcon_multi_query() -> PreTrainedConfig:
    return FalconConfig(num_attention_heads=4, hidden_size=64, bias=True, **common())


def falcon_new_decoder() -> PreTrainedConfig:
    fields: dict[str, Any] = {"num_kv_heads": 2, "new_decoder_architecture": True}
    return FalconConfig(num_attention_heads=4, hidden_size=64, **fields, **common())


def granite() -> PreTrainedConfig:
    fields: dict[str, Any] = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1}
    return GraniteConfig(**_HEADS, **fields, logits_scaling=4.0, **common())


def granite_moe() -> PreTrainedConfig:
    return GraniteMoeConfig(**_HEADS, num_local_experts=4, num_experts_per_tok=2, **common())


def olmo() -> PreTrainedConfig:
    return OlmoConfig(**_HEADS, clip_qkv=1.0, **common())


def olmo2() -> PreTrainedConfig:
    return Olmo2Config(**_HEADS, **common())


def olmo3() -> PreTrainedConfig:
    return Olmo3Config(**_HEADS, layer_types=_LAYERS, sliding_window=24, **common())


def olmoe() -> PreTrainedConfig:
    return OlmoeConfig(**_HEADS, num_experts=4, num_experts_per_tok=2, **common())


def smollm3() -> PreTrainedConfig:
    return SmolLM3Config(**_HEADS, no_rope_layers=[1, 0, 1], **common())


def gpt_oss() -> PreTrainedConfig:
    rope: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "truncate": False}
    rope |= {"original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
    sizes: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 24}
    return GptOssConfig(**_HEADS, **sizes, rope_parameters=rope, **common())


def cohere() -> PreTrainedConfig:
    return CohereConfig(**_HEADS, logit_scale=0.5, use_qk_norm=True, **common())


def deepseek_v3() -> PreTrainedConfig:
    latent: dict[str, Any] = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}
    experts: dict[str, Any] = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    sizes: dict[str, Any] = {"v_head_dim": 16, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
    heads = _HEADS | {"num_key_value_heads": 4}
    return DeepseekV3Config(**heads, **latent, **experts, **sizes, **common())


def glm4() -> PreTrainedConfig:
    return Glm4Config(**_HEADS, head_dim=16, attention_bias=True, **common())


def stablelm() -> PreTrainedConfig:
    return StableLmConfig(**_HEADS, use_parallel_residual=True, qk_layernorm=True, **common())


def starcoder2() -> PreTrainedConfig:
    return Starcoder2Config(**_HEADS, sliding_window=24, **common())


MODELS = (
    ModelCase("LlamaForCausalLM", llama_gqa, "grouped KV heads", "Llama 1 to 3.3, Vicuna, TinyLlama, SmolLM2, Yi"),
    ModelCase(
        "LlamaForCausalLM", llama_one_kv_head, "one KV head, biases, tied embeddings, llama3 rope", every_case=False
    ),
    ModelCase("LlamaForCausalLM", llama_dynamic_rope, "dynamic rope, up to its original length", every_case=False),
    ModelCase("MistralForCausalLM", mistral, "sliding window", "Mistral 7B, Ministral 8B, Mistral Nemo, Zephyr", False),
    ModelCase("MixtralForCausalLM", mixtral, "mixture of experts", "Mixtral 8x7B, 8x22B", False),
    ModelCase("Qwen2ForCausalLM", qwen2, "biases of q, k, v", "Qwen2, Qwen2.5, QwQ, DeepSeek-R1-Distill-Qwen", False),
    ModelCase("Qwen2ForCausalLM", qwen2_sliding_window, "sliding window in some layers", every_case=False),
    ModelCase("Qwen3ForCausalLM", qwen3, "norms of q and k", "Qwen3"),
    ModelCase(
        "Qwen3MoeForCausalLM", qwen3_moe, "mixture of experts beside dense layers", "Qwen3-30B-A3B, 235B-A22B", False
    ),
    ModelCase("GemmaForCausalLM", gemma, "scaled embeddings, wide heads", "Gemma 2B, 7B, CodeGemma", False),
    ModelCase("Gemma2ForCausalLM", gemma2, "soft caps of scores and logits, alternating window", "Gemma 2 2B, 9B, 27B"),
    ModelCase("Gemma3ForCausalLM", gemma3, "window and rope by type of layer", "Gemma 3 270M, 1B", False),
    ModelCase(
        "Gemma3ForConditionalGeneration", gemma3_with_images, "its text part alone", "Gemma 3 4B, 12B, 27B", False
    ),
    ModelCase(
        "Phi3ForCausalLM", phi3, "fused q, k, v; sliding window", "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini", False
    ),
    ModelCase("Phi3ForCausalLM", phi3_longrope, "partial longrope, up to its original length", every_case=False),
    ModelCase("OPTForCausalLM", opt, "learned positions, biases, ReLU", "OPT 125M to 66B, Galactica", False),
    ModelCase("OPTForCausalLM", opt_350m_like, "projected embeddings, norm after attention"),
    ModelCase("GPT2LMHeadModel", gpt2, "learned positions, transposed linears, scale by layer", "GPT-2, DistilGPT2"),
    ModelCase("GPTNeoXForCausalLM", gpt_neox, "parallel residual, partial rope", "Pythia, GPT-NeoX-20B, Dolly", False),
    ModelCase("GPTNeoXForCausalLM", gpt_neox_sequential, "sequential residual, full rope", every_case=False),
    ModelCase(
        "FalconForCausalLM", falcon_multi_query, "one KV head, parallel residual, biases", "Falcon 7B, 40B, 180B"
    ),
    ModelCase("FalconForCausalLM", falcon_new_decoder, "new decoder: grouped KV heads, two norms", every_case=False),
    ModelCase("GraniteForCausalLM", granite, "four multipliers", "Granite 3.x 2B, 8B, Granite Code", False),
    ModelCase("Olmo2ForCausalLM", olmo2, "norms after each part, norms of q and k", "OLMo 2 1B to 32B", False),
    ModelCase("SmolLM3ForCausalLM", smollm3, "layers without rope", "SmolLM3 3B", False),
    ModelCase(
        "GptOssForCausalLM", gpt_oss, "sinks, alternating window, mixture of experts, yarn", "gpt-oss (not in MXFP4)"
    ),
    ModelCase("CohereForCausalLM", cohere, "parallel residual, interleaved rope, logit scale", "Command R, Aya", False),
    ModelCase("DeepseekV3ForCausalLM", deepseek_v3, "latent attention, grouped experts", "DeepSeek-V3, R1", False),
    ModelCase("GPTBigCodeForCausalLM", gpt_bigcode, "learned positions, one KV head", "StarCoder, SantaCoder", False),
    ModelCase("Glm4ForCausalLM", glm4, "four norms a layer, partial rope", "GLM-4-0414", False),
    ModelCase("GraniteMoeForCausalLM", granite_moe, "mixture of experts", "Granite 3.x 1B-A400M, 3B-A800M", False),
    ModelCase("OlmoForCausalLM", olmo, "norms without weights, clipped q, k, v", "OLMo 1B, 7B", False),
    ModelCase("Olmo3ForCausalLM", olmo3, "window by type of layer", "OLMo 3 7B, 32B", False),
    ModelCase("OlmoeForCausalLM", olmoe, "mixture of experts, norms of q and k", "OLMoE 1B-7B", False),
    ModelCase("PhiForCausalLM", phi, "parallel residual, partial rope", "Phi-1, Phi-1.5, Phi-2", False),
    ModelCase("Qwen2MoeForCausalLM", qwen2_moe, "a shared expert beside chosen ones", "Qwen1.5-MoE-A2.7B", False),
    ModelCase("StableLmForCausalLM", stablelm, "norms of q and k by head, partial rope", "StableLM 2, 3B", False),
    ModelCase("Starcoder2ForCausalLM", starcoder2, "sliding window, biases", "StarCoder2 3B, 7B, 15B", False),
)


def table() -> str:
    """The Markdown table of `MODELS`, a row for each architecture."""
    lines = ["| architecture | models of it | what of it is tested | tests |", "|---|---|---|---|"]
    for architecture, group in groupby(MODELS, lambda case: case.architecture):
        cases = list(group)
        special = "; ".join(f"{case.special} (`{case.make.__name__}`)" for case in cases)
        tests = "each case" if any(case.every_case for case in cases) else "all at once"
        lines.append(f"| `{architecture}` | {cases[0].examples} | {special} | {tests} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table that `MODELS` makes in the place of the one that it has."""
    before, rest = page.split(_BEGIN)
    return before + _BEGIN + table() + _END + rest.split(_END)[1]


if __name__ == "__main__":
    TABLE_FILE.write_text(with_table(TABLE_FILE.read_text()))
