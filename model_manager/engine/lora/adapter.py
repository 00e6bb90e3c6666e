"""A LoRA adapter as peft saves it: its settings and weights, checked against a model's layers.

A setting that would change the answer and is not supported is refused by name. The weights say which layers an adapter
changes; `target_modules` is only compared with them.

The format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError

from ...store.adapters import digest_of
from ...store.contents import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ...wire.conversion import converted
from ...wire.errors import InvalidRequest
from ...wire.request import Adapter
from ..interface import AdapterNotRead

_NO_EFFECT = ("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version",
              "lora_dropout", "fan_in_fan_out", "layers_to_transform", "layers_pattern", "exclude_modules",
              "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core", "qalora_group_size",
              "ensure_weight_tying")  # fmt: skip
"""Settings that concern training only, or repeat what the weights' names say."""
T = TypeVar("T")
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_PLAIN_PATTERN = re.compile(r"[\w.]+")


class _AdapterConfig(msgspec.Struct, frozen=True):
    """The settings that are read from adapter_config.json, and the values that are supported."""

    peft_type: Literal["LORA"]
    r: int
    lora_alpha: float
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    target_modules: list[str] | str | None = None
    bias: Literal["none"] = "none"
    init_lora_weights: bool | Literal["gaussian", "eva", "orthogonal"] | None = None
    """Other values change the model's own weights."""


@dataclass(frozen=True)
class Factors:
    """What an adapter adds to one layer: up (down x)."""

    down: torch.Tensor
    """[rank, in_features], peft's A."""
    up: torch.Tensor
    """[out_features, rank], peft's B times the scale."""

    def to(self, dtype: torch.dtype, device: torch.device) -> Factors:
        """A copy in this format on this device."""
        return Factors(self.down.to(device, dtype), self.up.to(device, dtype))


def read_adapter(adapter: Adapter, sizes: Mapping[str, tuple[int, int]], max_rank: int) -> dict[str, Factors]:
    """An adapter's factors by layer, in float32; `sizes`: (out_features, in_features) of layers that take adapters.

    Raises InvalidRequest, or AdapterNotRead, which says what is wrong; the caller names the adapter.
    """
    config, weights = _contents(adapter)
    settings = _settings(config)
    factors = {name: _factors(name, pair, settings, sizes) for name, pair in _pairs(weights).items()}
    highest = max((each.down.shape[0] for each in factors.values()), default=0)
    if highest > max_rank:
        raise InvalidRequest(f"has rank {highest}; takes at most max_lora_rank={max_rank}")
    _check_targets(settings.target_modules, list(factors))
    return factors


def _contents(adapter: Adapter) -> tuple[bytes, bytes]:
    """The adapter's config and weights; raises AdapterNotRead unless their digest is the adapter's."""
    try:
        config, weights = (_content(Path(adapter.folder) / name) for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS))
    except OSError as error:
        raise AdapterNotRead(f"cannot be read: {error}") from None
    if digest_of(config, weights) != adapter.digest:
        raise AdapterNotRead("its files have changed since the request was sent")
    return config, weights


def _content(path: Path) -> bytes:
    if path.exists() and not path.is_file():  # to open a pipe would wait for who writes to it
        raise OSError(f"{path} is no file")
    return path.read_bytes()


def _settings(config: bytes) -> _AdapterConfig:
    try:
        given = msgspec.json.decode(config, type=dict[str, Any])
        ours = {name: value for name, value in given.items() if name in _AdapterConfig.__struct_fields__}
        settings = converted(ours, _AdapterConfig, InvalidRequest, what="setting")
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidRequest) as error:
        raise InvalidRequest(f"{ADAPTER_CONFIG}: {error}") from None
    for name in sorted(given.keys() - {*_AdapterConfig.__struct_fields__, *_NO_EFFECT}):
        if given[name]:
            raise InvalidRequest(f"{ADAPTER_CONFIG}: {name}={given[name]!r} is not supported")
    return settings


def _pairs(weights: bytes) -> dict[str, dict[str, torch.Tensor]]:
    """A and B by layer."""
    try:
        tensors = safetensors.torch.load(weights)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InvalidRequest(f"{ADAPTER_WEIGHTS}: {error}") from None
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        found = _NAME.fullmatch(name)
        if found is None:
            raise InvalidRequest(f"{ADAPTER_WEIGHTS} has {name}, which is no factor of a linear layer")
        pairs.setdefault(found[1], {})[found[2]] = tensor.float()
    if not pairs:
        raise InvalidRequest(f"{ADAPTER_WEIGHTS} has no weights")
    return pairs


def _factors(
    name: str, pair: dict[str, torch.Tensor], settings: _AdapterConfig, sizes: Mapping[str, tuple[int, int]]
) -> Factors:
    if name not in sizes:
        raise InvalidRequest(f"changes {name}, which is no linear layer of the model that takes adapters")
    rank = _of("rank_pattern", settings.rank_pattern, name, settings.r)
    alpha = _of("alpha_pattern", settings.alpha_pattern, name, settings.lora_alpha)
    out_features, in_features = sizes[name]
    shapes = {which: list(tensor.shape) for which, tensor in sorted(pair.items())}
    wanted = {"A": [rank, in_features], "B": [out_features, rank]}
    if shapes != wanted or rank < 1:
        raise InvalidRequest(f"{name}: has factors of {shapes}; the model, and rank {rank}, take {wanted}")
    scale = alpha / (math.sqrt(rank) if settings.use_rslora else rank)
    return Factors(pair["A"], pair["B"] * scale)


def _of(setting: str, pattern: Mapping[str, T] | None, name: str, otherwise: T) -> T:
    """The value of a pattern's first key that the layer's name ends with."""
    for key, value in (pattern or {}).items():
        if not _PLAIN_PATTERN.fullmatch(key):
            raise InvalidRequest(f"{setting} has {key!r}; takes names of layers, or their ends")
        if _ends(name, key):
            return value
    return otherwise


def _check_targets(targets: list[str] | str | None, layers: list[str]) -> None:
    """Each entry of a list must be the name, or the end of the name, of a layer; a pattern is not checked."""
    if targets is None or isinstance(targets, str):
        return
    strange = [name for name in layers if not any(_ends(name, target) for target in targets)]
    if strange:
        raise InvalidRequest(f"{ADAPTER_WEIGHTS} has {strange[0]}, which target_modules={targets} do not name")
    absent = [target for target in targets if not any(_ends(name, target) for name in layers)]
    if absent:
        raise InvalidRequest(f"target_modules names {absent[0]!r}, which {ADAPTER_WEIGHTS} has no weights of")


def _ends(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")
