"""millrace-tiny as a GGUF file, in float32, q8_0, q5_1 or q4_0: written here, so that tests need no download."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.gguf_file import PARTS
from tests.model_manager.store.checkpoints import EMBEDDED

Format = Literal["f32", "q8_0", "q5_1", "q4_0"]
Values = npt.NDArray[np.floating[Any]]

_ALIGNMENT = 32
_BLOCK = 32
"""Weights of a row that share a scale."""
_TYPES = {"f32": (0, 0), "q4_0": (2, 2), "q5_1": (7, 9), "q8_0": (8, 7)}
"""By format: the type of its tensors, and of a file that has most of them."""
_UINT, _FLOAT, _BOOL, _STRING, _ARRAY, _INT = 4, 6, 7, 8, 9, 5
_CONTROL, _NORMAL = 3, 1


def write_gguf(path: Path, kind: Format = "f32", fields: Mapping[str, Any] | None = None) -> Path:
    """The embedded model at `path`; `fields` replace or add some of its metadata (None leaves one out)."""
    config = json.loads((EMBEDDED / "config.json").read_bytes())
    metadata = {
        key: value for key, value in (_metadata(config, kind) | dict(fields or {})).items() if value is not None
    }
    tensors = [(name, values, "f32" if values.ndim == 1 else kind) for name, values in _tensors(config)]
    header = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    header += [_string(key) + _value(value) for key, value in metadata.items()]
    stored: list[bytes] = []
    for name, values, format_ in tensors:
        shape = struct.pack(f"<I{values.ndim}Q", values.ndim, *reversed(values.shape))
        place = sum(map(len, stored))
        header.append(_string(name) + shape + struct.pack("<IQ", _TYPES[format_][0], place))
        stored.append(_padded(_encoded(values, format_)))
    path.write_bytes(_padded(b"".join(header)) + b"".join(stored))
    return path


def _metadata(config: dict[str, Any], kind: Format) -> dict[str, Any]:
    tokenizer = json.loads((EMBEDDED / "tokenizer.json").read_bytes())
    settings = json.loads((EMBEDDED / "tokenizer_config.json").read_bytes())
    vocabulary, special = tokenizer["model"]["vocab"], {token["id"] for token in tokenizer["added_tokens"]}
    return {
        "general.architecture": "llama",
        "general.file_type": _TYPES[kind][1],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",  # splits letters, digits and other characters where the model's own does
        "tokenizer.ggml.tokens": sorted(vocabulary, key=vocabulary.__getitem__),
        "tokenizer.ggml.token_type": [_CONTROL if each in special else _NORMAL for each in range(len(vocabulary))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": settings["chat_template"],
    }


def _tensors(config: dict[str, Any]) -> Iterator[tuple[str, Values]]:
    raw = (EMBEDDED / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    for key, tensor in json.loads(raw[8:begin]).items():
        if key == "__metadata__":
            continue
        start, end = tensor["data_offsets"]
        bits = np.frombuffer(raw[begin + start : begin + end], np.uint16).astype(np.uint32) << 16  # bfloat16
        values = bits.view(np.float32).reshape(tensor["shape"])
        name = key.removesuffix(".weight")
        if name.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads" if name.endswith("q_proj") else "num_key_value_heads"]
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)  # rotary pairs
        yield f"{_renamed(name)}.weight", values


def _renamed(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    if name in whole:
        return whole[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}"


def _encoded(values: Values, format_: str) -> bytes:
    """Blocks of 32 weights: a float16 scale and the weights as 8-bit integers, or as 4-bit ones from -8 on; or a scale,
    the least weight and 5-bit integers, whose fifth bits stand together.
    """
    if format_ == "f32":
        return values.astype("<f4").tobytes()
    blocks = values.reshape(-1, _BLOCK)
    if format_ == "q8_0":
        scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
        return _joined(scale, _divided(blocks, scale).round().astype(np.int8).view(np.uint8))
    half = _BLOCK // 2
    if format_ == "q5_1":
        least = blocks.min(axis=1, keepdims=True)
        scale = (blocks.max(axis=1, keepdims=True) - least) / 31
        fives = np.clip(_divided(blocks - least, scale).round(), 0, 31).astype(np.uint8)
        high = np.packbits(fives >> 4, axis=1, bitorder="little")
        low = fives & 15
        return _joined(
            scale,
            np.concatenate([least.astype("<f2").view(np.uint8), high, low[:, :half] | low[:, half:] << 4], axis=1),
        )
    furthest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scale = furthest / -8
    nibbles = np.clip(_divided(blocks, scale) + 8.5, 0, 15).astype(np.uint8)
    return _joined(scale, nibbles[:, :half] | nibbles[:, half:] << 4)


def _divided(blocks: Values, scale: Values) -> Values:
    return np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale != 0)


def _joined(scale: Values, packed: npt.NDArray[Any]) -> bytes:
    return np.concatenate([scale.astype("<f2").view(np.uint8), packed], axis=1).tobytes()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    kind, data = _typed(value)
    return struct.pack("<I", kind) + data


def _typed(value: Any) -> tuple[int, bytes]:
    match value:
        case bool():
            return _BOOL, struct.pack("<?", value)
        case int():
            return _UINT, struct.pack("<I", value)
        case float():
            return _FLOAT, struct.pack("<f", value)
        case str():
            return _STRING, _string(value)
        case _:
            inner = _STRING if isinstance(value[0], str) else _INT
            entries = [_string(each) if inner == _STRING else struct.pack("<i", each) for each in value]
            return _ARRAY, struct.pack("<IQ", inner, len(value)) + b"".join(entries)
