"""Sizes in a config.json, checked before transformers divides by them or makes lists of their length.

Fields go by their names in the file. A field that is missing or null is left to transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...wire.errors import ModelCorrupt

_WIDTHS = (
    "hidden_size n_embd intermediate_size n_inner ffn_dim ffn_hidden_size word_embed_proj_dim"
    " num_attention_heads n_head num_heads num_key_value_heads num_kv_heads head_dim"
)
_MOST = {
    **dict.fromkeys(_WIDTHS.split(), 2**20),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), 10_000),
    "vocab_size": 2**24,
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 2**27),
}
"""The largest size of each field; the smallest is 1."""
_ROPE_NUMBERS = frozenset("rope_theta factor beta_fast beta_slow low_freq_factor high_freq_factor".split())
_HEADS, _KV_HEADS = "num_attention_heads", "num_key_value_heads"
_DEPTH, _WIDTH = "num_hidden_layers", "hidden_size"
_SHOWN = 40


def check_config_sizes(file: Path) -> None:
    """Raises ModelCorrupt for a field that is no possible size, number or name. A file that is no object is left to
    transformers.
    """
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    for where, fields in _parts(config):
        _check_ropes(file, where, fields)
        names = fields.get("architectures")
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise _wrong(file, f"{where}architectures", names, "a list of class names")
        for name, most in _MOST.items():
            value = fields.get(name)
            for size in value if isinstance(value, list) else (value,):
                if size is not None and not (type(size) is int and 1 <= size <= most):
                    raise _wrong(file, where + name, size, f"an integer from 1 to {most}")


def _check_ropes(file: Path, where: str, fields: dict[str, Any]) -> None:
    window = fields.get("sliding_window")
    if window is not None and type(window) is not int:
        raise _wrong(file, f"{where}sliding_window", window, "an integer or null")
    for name in ("rope_parameters", "rope_scaling"):
        given = fields.get(name)
        ropes = [given, *given.values()] if isinstance(given, dict) else []  # one, or one for each type of layer
        for rope in ropes:
            for key in _ROPE_NUMBERS & rope.keys() if isinstance(rope, dict) else ():
                if type(rope[key]) not in (int, float) or not math.isfinite(rope[key]):
                    raise _wrong(file, f"{where}{name}.{key}", rope[key], "a number")


def check_heads(file: Path, text: Any) -> None:
    """Raises ModelCorrupt unless key-value heads divide the attention heads, and attention heads the hidden size."""
    heads = getattr(text, _HEADS, None)
    if not isinstance(heads, int):
        return
    names = getattr(text, "attribute_map", {})
    kv_heads = getattr(text, _KV_HEADS, None)
    if isinstance(kv_heads, int) and heads % kv_heads:
        raise _wrong(file, names.get(_KV_HEADS, _KV_HEADS), kv_heads, f"a divisor of the {heads} attention heads")
    has_own_size = any(getattr(text, name, None) for name in ("head_dim", "qk_nope_head_dim"))
    if not has_own_size and text.hidden_size % heads:
        raise _wrong(file, names.get(_HEADS, _HEADS), heads, f"a divisor of the hidden size, {text.hidden_size}")


def check_depth(file: Path, text: Any, weights: int) -> None:
    """Raises ModelCorrupt if layers of this number and width have more parameters than there are `weights`: at least
    the width's square in each. To make up what is missing takes transformers time and memory without end.
    """
    depth, width = getattr(text, _DEPTH, None), getattr(text, _WIDTH, None)
    if isinstance(depth, int) and isinstance(width, int) and (least := depth * width * width) > weights:
        names = getattr(text, "attribute_map", {})
        fields = " and ".join(names.get(name, name) for name in (_DEPTH, _WIDTH))
        raise ModelCorrupt(f"{file}: {fields} describe {least:,} parameters or more, and the files hold {weights:,}")


def _parts(config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(config, dict):
        yield "", config
        if isinstance(config.get("text_config"), dict):
            yield "text_config.", config["text_config"]


def _wrong(file: Path, name: str, value: object, takes: str) -> ModelCorrupt:
    shown = json.dumps(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return ModelCorrupt(f"{file}: {name}: takes {takes}, got {shown}")
