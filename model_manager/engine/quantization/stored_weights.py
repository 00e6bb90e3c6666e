"""A quantized checkpoint's weights, layer by layer: kept in their few bits, or converted back.

Knows neither the storage formats (stored_formats.py) nor our layers (precision.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ...store.contents import weight_files
from ...wire.errors import ModelCorrupt
from .stored_formats import FORMATS, OrderedGroups, StoredFormat, Weight, worth

_UNUSED = ("input_scale", "input_zero_point", "output_scale", "activation_scale", "weight_format")
"""Parts that say how other engines round a layer's inputs; ours rounds row by row."""


@dataclass(frozen=True)
class StoredWeights:
    """What a checkpoint's files hold."""

    state: dict[str, torch.Tensor] = field(default_factory=dict)
    """All parameters by name; a layer that is kept in few bits has a placeholder there, which takes no memory."""
    kept: dict[str, Weight] = field(default_factory=dict)
    """Weights that stay in few bits, by layer."""


def read_weights(
    folder: Path,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    linears: Collection[str],
    keep: Callable[[Weight], bool],
) -> StoredWeights:
    """Read `folder` as its `quantization_config` says; weights that are not kept become `dtype`.

    `linears` are the layers that may be kept, those for whose weight `keep` says so. Raises ModelCorrupt, naming the
    layer, where parts are missing or do not belong together.
    """
    stored_format = FORMATS[config["quant_method"]]
    stored = StoredWeights()
    with ExitStack() as files:
        tensors = _Tensors([files.enter_context(safe_open(file, framework="pt")) for file in weight_files(folder)])
        parts, others = _by_layer(tensors.names, stored_format)
        stored.state.update({name: tensors.read(name) for name in others})
        for layer, names in parts.items():
            weight = _unpack(folder, layer, {name[len(layer) + 1 :]: tensors.read(name) for name in names}, config)
            full = worth(weight) if layer not in linears or not keep(weight) else None
            if full is None:
                stored.kept[layer] = weight
                full = torch.zeros((), dtype=dtype).expand(_shape(weight))
            stored.state[f"{layer}.weight"] = full.to(dtype)
    return stored


def _shape(weight: Weight) -> torch.Size:
    """(out, in)."""
    if isinstance(weight, torch.Tensor):
        return weight.shape
    groups = weight.groups if isinstance(weight, OrderedGroups) else weight
    return groups.steps.shape


class _Tensors:
    """The tensors of several files."""

    def __init__(self, files: list[Any]) -> None:
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118 - it is no mapping

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor


def _by_layer(names: list[str], stored_format: StoredFormat) -> tuple[dict[str, list[str]], list[str]]:
    """The names of the parts of each quantized layer, and all other names."""
    marks = [f".{mark}" for mark in stored_format.marks]
    layers = {name.removesuffix(mark) for name in names for mark in marks if name.endswith(mark)}
    parts: dict[str, list[str]] = {layer: [] for layer in layers}
    others = []
    for name in names:
        layer = next((layer for layer in _parents(name) if layer in layers), None)
        if layer is None or name == f"{layer}.bias":
            others.append(name)
        elif name.rpartition(".")[2] not in _UNUSED:
            parts[layer].append(name)
    return parts, others


def _parents(name: str) -> list[str]:
    pieces = name.split(".")
    return [".".join(pieces[:count]) for count in range(len(pieces) - 1, 0, -1)]


def _unpack(folder: Path, layer: str, parts: dict[str, torch.Tensor], config: Mapping[str, Any]) -> Weight:
    try:
        return FORMATS[config["quant_method"]].unpack(parts, config)
    except KeyError as error:
        raise ModelCorrupt(f"{folder}: {layer} lacks {error.args[0]}") from None
    except (RuntimeError, ValueError, IndexError, StopIteration) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ModelCorrupt(f"{folder}: the parts of {layer} do not belong together: {reason}") from None
