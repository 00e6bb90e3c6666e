"""What a checkpoint's weights and its keys and values must take in memory, counted from its files alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from millrace.model_manager.store.weight_headers import TensorEntry, read_header


def weight_bytes(folder: Path, itemsize: int, linear_itemsize: int) -> int:
    """All weights of the folder's `.safetensors`, embeddings and norms in `itemsize` bytes a number, the layers' in the
    other.

    A weight that is used twice counts once; scales of quantized weights do not count.
    """

    def width(name: str, tensor: TensorEntry) -> int:
        return linear_itemsize if len(tensor["shape"]) == 2 and "embed" not in name else itemsize

    headers = [read_header(path).tensors or {} for path in folder.glob("*.safetensors")]
    return sum(math.prod(each["shape"]) * width(name, each) for header in headers for name, each in header.items())


def kv_bytes_per_token(folder: Path, dtype: str) -> int:
    """Keys and values of one token in all layers; in int8 with a float32 scale for each token and head."""
    fields = json.loads((folder / "config.json").read_bytes())
    fields = fields.get("text_config") or fields
    heads = _number(fields, "num_attention_heads", "n_head")
    dim = _number(fields, "head_dim") or _number(fields, "hidden_size", "n_embd") // max(1, heads)
    kv_heads = 2 * _number(fields, "num_hidden_layers", "n_layer") * (_number(fields, "num_key_value_heads") or heads)
    return kv_heads * {"float32": 4 * dim, "bfloat16": 2 * dim, "float16": 2 * dim, "int8": dim + 4}[dtype]


def _number(fields: dict[str, Any], *names: str) -> int:
    return next((int(fields[name]) for name in names if isinstance(fields.get(name), int)), 0)
