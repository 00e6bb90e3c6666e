"""Whether one model fits beside those that run: what it will take, by its files and settings, against what there is.

An estimate, made before anything is loaded; the engine that loads it knows better, and has the last word. Reads headers
and settings of checkpoints; knows no torch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..wire.config import ModelConfig
from ..wire.free_memory import free_memory

GIB = 2**30
PROCESS = 0.35
"""GiB of an inference process before its weights."""
MARGIN = 1.1
"""What packing and loading take beside the weights, as a factor."""
USEFUL_TOKENS = 256
"""Of each of max_num_seqs sequences: a model with less cache than that runs, for good, far below its speed."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_ROUNDED = {"int8": 1.0, "fp8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class Footprint:
    """What a model that runs, or is to, takes of the machine."""

    key: str
    config: ModelConfig
    folder: str
    engines: int = 1
    used: float = 0.0
    """GiB that its processes have by now."""
    on_gpu: bool = False
    gpu_free: float = 0.0
    """GiB that its engines have left of their GPUs."""


class Memory:
    """Of one machine."""

    def __init__(
        self,
        limit_gib: float | None,
        free: Callable[[], int] = free_memory,
        needs: Callable[[ModelConfig, str], float] | None = None,
    ) -> None:
        """`limit_gib`: for all inference processes together; None is what is free. `free` gives bytes, `needs` GiB."""
        self._limit = limit_gib
        self._free = free
        self._needs = needs or estimate
        self._known: dict[str, float] = {}

    def allows(self, new: Footprint, running: Iterable[Footprint]) -> bool:
        """Whether `new` fits beside all that run: as large as they are or will be, whichever is more."""
        need, others = self._need(new), [*running]
        if self._limit is not None:
            return need <= self._limit - sum(max(self._need(other), other.used) for other in others)
        if new.on_gpu:  # weights and cache lie there, and are taken from the beginning
            return need <= min((other.gpu_free for other in others if other.on_gpu), default=need)
        growth = sum(max(0.0, self._need(other) - other.used) for other in others if not other.on_gpu)
        return need <= self._free() / GIB - growth

    def _need(self, model: Footprint) -> float:
        if model.key not in self._known:
            self._known[model.key] = self._needs(model.config, model.folder)
        return self._known[model.key] * model.engines


def estimate(config: ModelConfig, folder: str) -> float:
    """GiB that an engine of the model takes: process, weights and KV cache."""
    if config.backend == "fake":
        return PROCESS
    fields = _config_json(Path(folder))
    cache = config.kv_cache_gib or config.max_num_seqs * USEFUL_TOKENS * _bytes_per_token(config, fields) / GIB
    return PROCESS + MARGIN * _weights(config, Path(folder)) / GIB + cache


def _weights(config: ModelConfig, folder: Path) -> float:
    """Bytes of the weights as they will be held."""
    return sum(_file_weights(config, path) for path in folder.glob("*.safetensors"))


def _file_weights(config: ModelConfig, path: Path) -> float:
    """The format: https://github.com/huggingface/safetensors#format"""
    size = path.stat().st_size
    if config.quantization == "none" and config.dtype == "auto":
        return size
    with path.open("rb") as file:
        start = file.read(8)
        header = file.read(min(size, struct.unpack("<Q", start)[0])) if len(start) == 8 else b""
    try:
        tensors = [value for name, value in json.loads(header).items() if name != "__metadata__"]
        return sum(_numbers(tensor["shape"]) * _width(config, tensor) for tensor in tensors)
    except (ValueError, KeyError, TypeError, AttributeError):
        return size


def _numbers(shape: list[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _width(config: ModelConfig, tensor: dict[str, Any]) -> float:
    """Bytes a number; linear layers are rounded where the settings say so."""
    if config.quantization != "none" and len(tensor["shape"]) > 1:
        return _ROUNDED[config.quantization]
    return _BYTES.get(config.dtype, 4 if tensor["dtype"] == "F32" else 2)


def _bytes_per_token(config: ModelConfig, fields: dict[str, Any]) -> float:
    """Of keys and values; 0 where config.json does not say it in the usual words."""
    heads = _number(fields, "num_attention_heads", "n_head")
    width = _number(fields, "head_dim") or (_number(fields, "hidden_size", "n_embd") // heads if heads else 0)
    kv_heads = _number(fields, "num_key_value_heads") or heads
    stored = str(fields.get("dtype") or fields.get("torch_dtype") or "")
    number = 1 if config.kv_cache_dtype != "auto" else _BYTES.get(config.dtype) or _BYTES.get(stored, 2)
    return 2 * _number(fields, "num_hidden_layers", "n_layer") * kv_heads * width * number


def _number(fields: dict[str, Any], *names: str) -> int:
    return next((int(fields[name]) for name in names if isinstance(fields.get(name), int)), 0)


def _config_json(folder: Path) -> dict[str, Any]:
    """The part that describes the language model."""
    try:
        fields = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    inner = fields.get("text_config") if isinstance(fields, dict) else None
    return inner if isinstance(inner, dict) else fields if isinstance(fields, dict) else {}
