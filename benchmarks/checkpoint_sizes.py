"""What a checkpoint's weights and its keys and values must take in memory, counted from its files alone."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path


def weight_bytes(folder: Path, itemsize: int, linear_itemsize: int) -> int:
    """All weights of the folder's `.safetensors`, embeddings and norms in `itemsize` bytes a number, the layers' in the
    other.

    A weight that is used twice counts once; scales of quantized weights do not count.
    """
    shapes = {name: shape for file in sorted(folder.glob("*.safetensors")) for name, shape in _shapes(file).items()}
    sizes: list[int] = [
        math.prod(shape) * (linear_itemsize if len(shape) == 2 and "embed" not in name else itemsize)
        for name, shape in shapes.items()
    ]
    return sum(sizes)


def kv_bytes_per_token(folder: Path, dtype: str) -> int:
    """Keys and values of one token in all layers; in int8 with a float32 scale for each token and head."""
    config = json.loads((folder / "config.json").read_text())
    heads: int = config["num_attention_heads"]
    head_dim: int = config.get("head_dim") or config["hidden_size"] // heads
    per_head = {"float32": 4 * head_dim, "bfloat16": 2 * head_dim, "float16": 2 * head_dim, "int8": head_dim + 4}[dtype]
    return 2 * int(config["num_hidden_layers"]) * int(config.get("num_key_value_heads", heads)) * per_head


def _shapes(path: Path) -> dict[str, list[int]]:
    """By name, from the file's header."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
