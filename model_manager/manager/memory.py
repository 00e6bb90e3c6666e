"""Whether one model fits beside those that run: what it will take, by its files and settings, against what there is.

An estimate from the checkpoint's files (store/footprint.py), made before anything is loaded; the engine that loads the
model knows better, and has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..store.footprint import Tensor, kv_values_per_token, stored_dtype, weight_bytes
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
    weights = weight_bytes(Path(folder), partial(_width, config))
    cache = config.kv_cache_gib or config.max_num_seqs * USEFUL_TOKENS * _bytes_per_token(config, Path(folder)) / GIB
    return PROCESS + MARGIN * weights / GIB + cache


def _width(config: ModelConfig, _name: str, tensor: Tensor) -> float:
    """Bytes a number; linear layers are rounded where the settings say so."""
    if config.quantization != "none" and len(tensor["shape"]) > 1:
        return _ROUNDED[config.quantization]
    stored = (tensor["data_offsets"][1] - tensor["data_offsets"][0]) / max(1, math.prod(tensor["shape"]))
    return _BYTES.get(config.dtype) or stored


def _bytes_per_token(config: ModelConfig, folder: Path) -> float:
    """Of keys and values."""
    heads, width = kv_values_per_token(folder)
    number = 1 if config.kv_cache_dtype != "auto" else _BYTES.get(config.dtype) or _BYTES.get(stored_dtype(folder), 2)
    return heads * width * number
