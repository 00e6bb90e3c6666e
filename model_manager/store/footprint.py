"""What a checkpoint's weights, and its keys and values, take in memory: counted from its files without loading them.

Reads the headers of weights and config.json; knows no torch. The engine, which loads them, knows the sizes exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_MOST_HEADER = 2**28
Tensor = dict[str, Any]
"""A tensor in a header of safetensors: `dtype`, `shape` and `data_offsets`."""


class Header(NamedTuple):
    """The header of a safetensors file, https://github.com/huggingface/safetensors#format."""

    raw: bytes
    """Its bytes, with the eight before them that say how long it is."""
    tensors: dict[str, Tensor] | None
    """By name; None if this is no header."""


def read_header(path: Path) -> Header:
    """The header of a file, damaged or not."""
    with path.open("rb") as file:
        start = file.read(8)
        raw = start + file.read(min(int.from_bytes(start, "little"), _MOST_HEADER))
    try:
        found = json.loads(raw[8:])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return Header(raw, None)
    return Header(raw, {name: value for name, value in found.items() if name != "__metadata__"})


def weight_bytes(folder: Path, width: Callable[[str, Tensor], float]) -> float:
    """All weights of a folder, each once, with `width` bytes a number; a file without a header counts as it is."""
    total = 0.0
    for path in folder.glob("*.safetensors"):
        try:
            tensors = (read_header(path).tensors or {}).items()
            sizes = [math.prod(tensor["shape"]) * width(name, tensor) for name, tensor in tensors]
        except (KeyError, TypeError):
            sizes = []
        total += sum(sizes) or path.stat().st_size
    return total


def kv_values_per_token(folder: Path) -> tuple[int, int]:
    """The heads of one token's keys and values in all layers, and the values of each; (0, 0) if config.json does not
    say it in the usual words.
    """
    fields = _language_model(folder)
    heads = _number(fields, "num_attention_heads", "n_head")
    width = _number(fields, "head_dim") or (_number(fields, "hidden_size", "n_embd") // heads if heads else 0)
    kv_heads = _number(fields, "num_key_value_heads") or heads
    return 2 * _number(fields, "num_hidden_layers", "n_layer") * kv_heads, width


def stored_dtype(folder: Path) -> str:
    """The format that config.json names; empty if it names none."""
    fields = _language_model(folder)
    return str(fields.get("dtype") or fields.get("torch_dtype") or "")


def _number(fields: dict[str, Any], *names: str) -> int:
    return next((int(fields[name]) for name in names if isinstance(fields.get(name), int)), 0)


def _language_model(folder: Path) -> dict[str, Any]:
    """The part of config.json that describes the language model."""
    try:
        fields = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    inner = fields.get("text_config") if isinstance(fields, dict) else None
    return inner if isinstance(inner, dict) else fields if isinstance(fields, dict) else {}
