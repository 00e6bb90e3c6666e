"""What a checkpoint's weights and its keys and values must take in memory, counted from its files alone."""

from __future__ import annotations

from pathlib import Path

from millrace.model_manager.store import footprint


def weight_bytes(folder: Path, itemsize: int, linear_itemsize: int) -> int:
    """All weights of the folder's `.safetensors`, embeddings and norms in `itemsize` bytes a number, the layers' in the
    other.

    A weight that is used twice counts once; scales of quantized weights do not count.
    """

    def width(name: str, tensor: footprint.Tensor) -> int:
        return linear_itemsize if len(tensor["shape"]) == 2 and "embed" not in name else itemsize

    return int(footprint.weight_bytes(folder, width))


def kv_bytes_per_token(folder: Path, dtype: str) -> int:
    """Keys and values of one token in all layers; in int8 with a float32 scale for each token and head."""
    heads, dim = footprint.kv_values_per_token(folder)
    return heads * {"float32": 4 * dim, "bfloat16": 2 * dim, "float16": 2 * dim, "int8": dim + 4}[dtype]
