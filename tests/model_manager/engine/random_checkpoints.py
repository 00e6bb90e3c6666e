"""Small checkpoints of random weights, wide enough apart that greedy outputs vary and do not tie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    LlamaConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from millrace.model_manager.engine.torch import falcon
from millrace.model_manager.engine.torch.attention_hook import IMPLEMENTATION, register

VOCAB = 211
POSITIONS = 256


def llama_gqa() -> PreTrainedConfig:
    return LlamaConfig(num_attention_heads=6, num_key_value_heads=2, head_dim=32, hidden_size=96, **common())


def llama_one_kv_head() -> PreTrainedConfig:
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    sizes: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 64}
    sizes |= {"attention_bias": True}
    return LlamaConfig(**sizes, mlp_bias=True, rope_parameters=rope, **common() | {"tie_word_embeddings": True})


def qwen2() -> PreTrainedConfig:
    return Qwen2Config(num_attention_heads=4, num_key_value_heads=2, hidden_size=64, **common())


def qwen2_sliding_window() -> PreTrainedConfig:
    window: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    return Qwen2Config(num_attention_heads=4, num_key_value_heads=2, hidden_size=64, **window, **common())


def opt() -> PreTrainedConfig:
    return _opt(hidden_size=64, word_embed_proj_dim=64)


def opt_350m_like() -> PreTrainedConfig:
    """Projects its embeddings, and normalises after attention, as opt-350m alone does."""
    return _opt(hidden_size=64, word_embed_proj_dim=32, do_layer_norm_before=False, tie_word_embeddings=False)


ALL = (llama_gqa, llama_one_kv_head, qwen2, qwen2_sliding_window, opt, opt_350m_like)


def write(folder: Path, config: PreTrainedConfig, *, dtype: torch.dtype = torch.float32, shard: str = "1GB") -> Any:
    """Save a model of `config` in `folder` and return it, ready to generate."""
    torch.manual_seed(len(config.model_type))
    classes: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    model: Any = classes[type(config)](config)
    # normalising after each part, as opt-350m does, lets wide weights drown the input: it would repeat one token
    embeddings, others = (0.25, 0.5) if getattr(config, "do_layer_norm_before", True) else (1.0, 0.1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not any(part in name for part in ("norm", "ln_")):
                matrix = embeddings if any(part in name for part in ("embed", "wte", "wpe")) else others
                parameter.normal_(0.0, matrix if parameter.ndim > 1 else 0.1)
    model = model.eval().to(dtype)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def hooked(config: PreTrainedConfig) -> Any:
    """Transformers' model of `config`, its attention ours."""
    register()
    falcon.register()
    classes: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    config._attn_implementation = IMPLEMENTATION
    return classes[type(config)](config).eval()


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """What transformers' own generation answers."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def _opt(**fields: Any) -> PreTrainedConfig:
    shared = common("vocab_size", "num_hidden_layers", "max_position_embeddings") | {"tie_word_embeddings": True}
    return OPTConfig(num_attention_heads=4, ffn_dim=96, dropout=0.0, **shared | fields)


def common(*names: str) -> dict[str, Any]:
    """Fields that all configs share; if names are given, only the sizes with these names."""
    sizes = {
        "vocab_size": VOCAB,
        "num_hidden_layers": 3,
        "intermediate_size": 96,
        "max_position_embeddings": POSITIONS,
    }
    tokens = {"tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 1}
    return {name: value for name, value in sizes.items() if name in (names or sizes)} | tokens
