"""Estimates the memory that a model takes once it is loaded, from its files. Knows no torch.

`Weights` counts what weights take once loaded, for an engine that loads them too. `file_bytes` counts the files, also
for a job that sizes machines for a model which is not on this one (pipelines/places/checkpoint_size.py).

manager/memory_scheduler.py decides by this estimate which models fit together. The engine that loads the model
measures, and has the last word.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..wire.backends import BACKENDS
from ..wire.config import ModelConfig
from ..wire.errors import ModelNotFound
from ..wire.machine import ENGINE_BYTES
from .contents import is_in_format, is_wanted, weight_files
from .gguf import gguf_bytes, is_gguf
from .weight_headers import TensorEntry, read_header

_GIB = 2**30
_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "fp8": 1.0, "int4": 0.5}
_STORED = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4}
"""Bytes of a number in safetensors; all other formats have one."""
SHARE_OF_MACHINE = 0.6
"""Share of the memory left after weights and activations that a KV cache may take: workers need some too."""
SHARE_OF_GPU = 0.92
"""The same on a GPU, where only the engine lives; the rest is for captured graphs and for what an allocator wastes."""
USEFUL_TOKENS = 256
"""A KV cache that has no room for this many tokens of a sequence is useless."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that one engine of a model takes."""

    fixed: int = 0
    """Weights, adapters, and the engine itself."""
    least_cache: int = 0
    """The smallest KV cache worth having."""
    most_cache: int = 0
    """The largest KV cache that can be used; 0 where it is not known or not counted."""

    @property
    def least(self) -> int:
        """Bytes of the least memory that the engine can be loaded in."""
        return self.fixed + self.least_cache

    @property
    def most_excess(self) -> int:
        """Bytes of KV cache that it can use above the smallest one worth having."""
        return max(0, self.most_cache - self.least_cache)


@dataclass(frozen=True)
class Weights:
    """The weights of a checkpoint, as the headers of its files have them; counts of numbers."""

    matrices: int
    vectors: int
    stored_bytes: int
    tied: int
    """Numbers of the embedding, if the output layer is tied to it; else 0."""
    is_quantized: bool
    """True if they are stored in few bits, and stay so."""

    def loaded_bytes(self, width: float, *, on_cpu: bool, matrix_width: float | None = None) -> int:
        """Least bytes once loaded, with `width` bytes a number, `matrix_width` in matrices that the load quantizes.

        On a CPU a tied output layer is packed beside the embedding.
        """
        matrices = self.matrices * (width if matrix_width is None else matrix_width)
        loaded = self.stored_bytes if self.is_quantized else matrices + self.vectors * width
        return int(loaded + (self.tied * width if on_cpu else 0))


def weight_patterns(names: Collection[str], backend: str) -> tuple[str, ...]:
    """Patterns of a model's files that are loaded as its weights: all of the back end's own format, if the folder with
    these names is in it.
    """
    own = BACKENDS[backend].own_files
    return own if own and own[0] in names else ("*.safetensors",)


def file_bytes(sizes: Mapping[str, int], patterns: Sequence[str]) -> int:
    """Bytes of the files whose names match. `sizes`: bytes of each file, by name."""
    return sum(size for name, size in sizes.items() if is_wanted(name, patterns))


def memory_need(config: ModelConfig, folder: str) -> MemoryNeed:
    """The need of one engine, of all its processes together. Nothing for servers, whose memory is not ours to count.

    Files that cannot be read count as nothing: the engine will say what is wrong with them.
    """
    if not BACKENDS[config.backend].fetches_files:
        return MemoryNeed()
    try:
        need = _need(config, Path(folder))
        draft = _need(config, Path(config.draft_model)) if config.draft_model else MemoryNeed()
    except Exception as error:  # whatever an odd value happens to break: infinity is no integer, a list has no names
        _log.warning("%s: its memory cannot be estimated (%s: %s)", config.model, type(error).__name__, error)
        return MemoryNeed(ENGINE_BYTES)
    weights = need.fixed + draft.fixed + ENGINE_BYTES
    if config.kv_cache_gib is not None:
        cache = int(config.kv_cache_gib * _GIB)
        return MemoryNeed(weights, cache, cache)
    return MemoryNeed(weights, need.least_cache + draft.least_cache, need.most_cache + draft.most_cache)


def _need(config: ModelConfig, folder: Path) -> MemoryNeed:
    if is_gguf(config.model):
        return MemoryNeed(gguf_bytes(config.model, folder))
    if is_in_format(folder, config.backend):
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        return MemoryNeed(file_bytes(sizes, weight_patterns(sizes, config.backend)))
    if not (folder / "config.json").is_file():  # to open a pipe would wait for who writes to it
        raise ModelNotFound(f"{folder}: config.json is no file")
    model = json.loads((folder / "config.json").read_bytes())
    model = model.get("text_config") or model
    tensors = _tensors(folder)
    width = _width(config, tensors)
    weights = _weights(model, tensors)
    matrix_width = _BYTES.get(config.quantization, width)
    loaded = weights.loaded_bytes(width, on_cpu=config.device != "cuda", matrix_width=matrix_width)
    fixed = loaded + config.max_loras * _adapter_bytes(config, model, width)
    if "kv_cache_gib" not in BACKENDS[config.backend].settings:
        return MemoryNeed(fixed)
    length = config.max_model_len or int(model["max_position_embeddings"])
    token = _cache_bytes_of_token(config, model, width)
    least = max(length, min(length, USEFUL_TOKENS) * config.max_num_seqs)
    return MemoryNeed(fixed, least * token, length * config.max_num_seqs * token)


def _tensors(folder: Path) -> list[TensorEntry]:
    return [tensor for file in weight_files(folder) for tensor in (read_header(file).tensors or {}).values()]


def _weights(model: Mapping[str, Any], tensors: list[TensorEntry]) -> Weights:
    is_tied = bool(model.get("tie_word_embeddings", True))
    return Weights(
        matrices=sum(math.prod(each["shape"]) for each in tensors if len(each["shape"]) > 1),
        vectors=sum(math.prod(each["shape"]) for each in tensors if len(each["shape"]) <= 1),
        stored_bytes=sum(math.prod(each["shape"]) * _STORED.get(each["dtype"], 1) for each in tensors),
        tied=int(model.get("vocab_size", 0)) * int(model.get("hidden_size", 0)) if is_tied else 0,
        is_quantized=bool(model.get("quantization_config")),
    )


def _width(config: ModelConfig, tensors: list[TensorEntry]) -> float:
    """Bytes of a weight that is not quantized. Some CPUs compute in four bytes what is stored in two."""
    if config.dtype != "auto":
        return _BYTES[config.dtype]
    stored = max((_STORED.get(each["dtype"], 1) for each in tensors), default=4)
    return max(2, min(4, stored)) if config.device == "cuda" else 4


def _cache_bytes_of_token(config: ModelConfig, model: Mapping[str, Any], width: float) -> int:
    """Keys and values of one token in all layers."""
    heads = int(model.get("num_attention_heads") or model["n_head"])
    hidden = int(model.get("hidden_size") or model["n_embd"])
    kv_heads = int(model.get("num_key_value_heads") or heads)
    size = int(model.get("head_dim") or hidden // heads)
    each = 1 if config.kv_cache_dtype != "auto" else width
    return int(2 * _layers(model) * kv_heads * size * each)


def _adapter_bytes(config: ModelConfig, model: Mapping[str, Any], width: float) -> int:
    """An adapter of the highest rank on all linear layers."""
    hidden = int(model.get("hidden_size") or model["n_embd"])
    inner = int(model.get("intermediate_size") or model.get("ffn_dim") or 4 * hidden)
    return int(config.max_lora_rank * _layers(model) * (8 * hidden + 3 * (hidden + inner)) * width)


def _layers(model: Mapping[str, Any]) -> int:
    return int(model.get("num_hidden_layers") or model["n_layer"])
