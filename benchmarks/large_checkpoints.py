"""Random-weight checkpoints in the shapes of models that GPUs run, written shard by shard, one in memory at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LAYERS_PER_SHARD = 4
_COMMON = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "rms_norm_eps": 1e-6, "dtype": "bfloat16"}
_SMALL = {"vocab_size": 10240, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 16,
          "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
_MODELS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _COMMON
    | {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "llama-3.1-8b": _COMMON
    | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
}
CONFIGS = _MODELS | {"qwen3-small": _MODELS["qwen3-0.6b"] | _SMALL, "llama-small": _MODELS["llama-3.1-8b"] | _SMALL}
"""By the names of workload.GPU_SHAPES and SMALL_SHAPES."""


def write(folder: Path, fields: dict[str, Any]) -> None:
    """config.json and weights of that configuration in bfloat16, seed 0; drawn on a GPU, where there is one."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    random = torch.Generator("cuda" if torch.cuda.is_available() else "cpu").manual_seed(0)
    shards = [names for names in _shards(shapes(fields)) if names]
    index: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {name: _tensor(name, size, random) for name, size in names.items()}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(names, file)
    total = sum(2 * torch.Size(size).numel() for size in shapes(fields).values())
    described = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(described))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # for the engines that follow


def shapes(fields: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every weight of a Llama or Qwen3 of that configuration, by its name in a checkpoint."""
    hidden, inner, dim = fields["hidden_size"], fields["intermediate_size"], fields["head_dim"]
    queries, keys = fields["num_attention_heads"] * dim, fields["num_key_value_heads"] * dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if fields["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
    named: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (fields["vocab_size"], hidden)}
    for number in range(fields["num_hidden_layers"]):
        named |= {f"model.layers.{number}.{name}.weight": size for name, size in layer.items()}
    named["model.norm.weight"] = (hidden,)
    if not fields["tie_word_embeddings"]:
        named["lm_head.weight"] = (fields["vocab_size"], hidden)
    return named


def _shards(named: dict[str, tuple[int, ...]]) -> list[dict[str, tuple[int, ...]]]:
    """A few layers each; what is in none comes first."""
    parts: dict[int, dict[str, tuple[int, ...]]] = {}
    for name, size in named.items():
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else -1
        parts.setdefault(layer // _LAYERS_PER_SHARD, {})[name] = size
    return list(parts.values())


def _tensor(name: str, size: tuple[int, ...], random: Any) -> Any:
    import torch

    if len(size) == 1:
        return torch.ones(size, dtype=torch.bfloat16)
    spread = 0.02 if "embed" in name else size[1] ** -0.5
    return torch.empty(size, dtype=torch.bfloat16, device=random.device).normal_(0.0, spread, generator=random).cpu()
