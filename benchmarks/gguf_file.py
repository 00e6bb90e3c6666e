"""A checkpoint in the shape of Qwen2 as a GGUF file, for llama.cpp: run by the Python that has the package `gguf`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
"""llama.cpp's names of a layer's parts, by the checkpoint's names."""
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
_TYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}


def write(source: Path, target: Path, dtype: str) -> None:
    """The file, in `target`; raises SystemExit for another architecture."""
    import gguf

    config = json.loads((source / "config.json").read_text())
    if config["model_type"] != "qwen2":
        raise SystemExit(f"{source}: takes qwen2, got {config['model_type']}")
    target.mkdir(parents=True)
    writer = gguf.GGUFWriter(target / "model.gguf", "qwen2")
    _describe(writer, config)
    _describe_tokenizer(writer, json.loads((source / "tokenizer.json").read_text()), config)
    kind = gguf.GGMLQuantizationType[_TYPES[dtype]]
    for name, values in _tensors(source / "model.safetensors"):
        own = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        writer.add_tensor(_renamed(name), gguf.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _describe_tokenizer(writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | {name: token["id"] for name, token in added.items()}
    tokens = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [3 if added.get(token, {}).get("special") else 4 if token in added else 1 for token in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Names and values of a safetensors file in float32."""
    import numpy as np

    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(size))
    data = np.memmap(path, np.uint8, "r", offset=8 + size)
    for name, entry in entries.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            yield name, np.array(data[start:end]).view(np.float32).reshape(entry["shape"])


def _renamed(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in _WHOLE:
        return f"{_WHOLE[module]}.{kind}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def main() -> None:
    """The command."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gguf_file", description=__doc__, formatter_class=as_it_is
    )
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument("folder", type=Path, help="where model.gguf is written")
    parser.add_argument("dtype", help="type of the weights; int8 is q8_0")
    given = parser.parse_args()
    write(given.checkpoint, given.folder, given.dtype)


if __name__ == "__main__":
    main()
