"""Options of llama.cpp: `backend_options`, in its own words, as fields of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...wire.backends import LLAMA_CPP_OPTIONS
from ...wire.config import Option
from ...wire.errors import ConfigError
from ..engine_options import check_names, of_type

_ENUMS = {
    "cache_type_k": ("ggml_type", "GGML_TYPE_"),
    "cache_type_v": ("ggml_type", "GGML_TYPE_"),
    "flash_attn_type": ("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_"),
    "load_mode": ("llama_load_mode", "LLAMA_LOAD_MODE_"),
    "numa": ("ggml_numa_strategy", "GGML_NUMA_STRATEGY_"),
    "rope_scaling_type": ("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_"),
    "split_mode": ("llama_split_mode", "LLAMA_SPLIT_MODE_"),
}
"""Options whose value is a name: the enumeration of xllamacpp, and what its names begin with."""
_CACHE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes of a number of the KV cache, by the format's name."""


def cache_bytes(options: Mapping[str, Option], name: str, default: str) -> float:
    """Bytes of a number in the cache of the keys (`cache_type_k`) or values; raises ConfigError for no such format."""
    given = str(options.get(name, default)).lower()
    if given not in _CACHE_BYTES:
        raise ConfigError(f"backend_options: {name}={given!r}: takes {', '.join(_CACHE_BYTES)}")
    return _CACHE_BYTES[given]


def apply_options(library: Any, params: Any, options: Mapping[str, Option]) -> None:
    """Set the fields of CommonParams; raises ConfigError for an unknown name or a value of another type."""
    check_names(options, LLAMA_CPP_OPTIONS, "llama.cpp")
    for name, value in options.items():
        if name == "n_threads_batch":
            _set(params.cpuparams_batch, "n_threads", of_type(name, value, 0), name)
        elif name == "poll":
            for each in (params.cpuparams, params.cpuparams_batch):
                _set(each, "poll", of_type(name, value, 0), name)
        elif name in _ENUMS:
            setattr(params, name, _named(library, name, value))
        else:
            _set(params, name, of_type(name, value, getattr(params, name)))


def _set(params: Any, field: str, value: Option, option: str = "") -> None:
    """Set a field; raises ConfigError for a number that it cannot hold."""
    try:
        setattr(params, field, value)
    except (OverflowError, TypeError, ValueError):
        raise ConfigError(f"backend_options: {option or field}={value!r}: takes a number within 32 bits") from None


def _named(library: Any, name: str, value: Option) -> Any:
    kind, prefix = _ENUMS[name]
    known = {each.name.removeprefix(prefix).lower(): each for each in getattr(library, kind)}
    if str(value).lower() not in known:
        raise ConfigError(f"backend_options: {name}={value!r}: takes one of {', '.join(known)}")
    return known[str(value).lower()]
