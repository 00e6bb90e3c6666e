"""Formats of a model's weights and its KV cache: those that a device serves, and the format that each layer gets.

Every linear layer but the output layer is rounded: that one decides directly between tokens, and a tied embedding stays
for lookups anyway. The compiled step of a CPU (compiled_runner.py) rounds it too in int8: there it is a good part of a
step, and docs/how-to/quantization.md has the cost. Embeddings and norms stay in the model's dtype. Knows no file.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ...wire.config import ModelConfig, Quantization
from ...wire.errors import ConfigError
from .rounded_linear import Fp8Linear, Int4Linear, Int8Linear, fits_16, fits_int4
from .rounding import RoundedGroups, RoundedRows, round_groups, round_rows
from .stored_formats import OrderedGroups, Weight

log = logging.getLogger(__name__)

CACHE_FORMATS = {"auto": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""The format that each kv_cache_dtype rounds keys and values to."""
INT4_GROUP = 32
"""Weights that share a scale in int4."""
_FP8_CAPABILITY = (8, 9)
_INT4_CAPABILITY = (8, 0)


def check_formats(config: ModelConfig, device: torch.device) -> None:
    """Raise ConfigError, naming the setting, for a format that `device` does not serve."""
    if config.quantization == "fp8":
        _check_capability("quantization", config.quantization, device, _FP8_CAPABILITY)
    if config.quantization == "int4" and device.type == "cuda":
        _check_capability("quantization", config.quantization, device, _INT4_CAPABILITY)
    if config.kv_cache_dtype == "fp8" and device.type == "cpu":
        raise ConfigError("kv_cache_dtype='fp8': no CPU computes with it, and int8 is as small; takes 'auto' or 'int8'")


def _check_capability(name: str, value: str, device: torch.device, needed: tuple[int, int]) -> None:
    found = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if found is None or found < needed:
        has = f"this GPU's is {found[0]}.{found[1]}" if found else "this is a CPU"
        raise ConfigError(
            f"{name}={value!r}: takes a GPU of compute capability {needed[0]}.{needed[1]} or more, and {has}; "
            "'int8' is served everywhere"
        )


def round_linears(model: Any, quantization: Quantization) -> None:
    """Replace the linear layers of `model` by rounded ones, freeing each weight as it goes."""
    if quantization == "none":
        return
    output = model.get_output_embeddings()
    left = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child is not output and not reads_weight(parent, name):
                rounded = _rounded(child, quantization)
                left += rounded is None
                setattr(parent, name, rounded or child)
    if left:
        log.warning("%d linear layers keep their dtype: %s does not take their sizes", left, quantization)


def reads_weight(parent: nn.Module, name: str) -> bool:
    """True if the code of `parent` reads the weight of its layer `name` itself, as some routers of experts do."""
    kind: Any = type(parent)  # mypy takes no class for Hashable
    return f"self.{name}.weight" in _source(kind)


@functools.cache
def _source(kind: type) -> str:
    """The code of a class, read once: that takes some 10 ms. Empty where it is not known."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def keeps(quantization: Quantization, device: torch.device) -> Callable[[Weight], bool]:
    """Which weights of a quantized checkpoint stay in their few bits: those that a layer here can multiply.

    None if another quantization is set: then they are rounded again from their values.
    """

    def keep(weight: Weight) -> bool:
        if quantization != "none" or isinstance(weight, torch.Tensor):
            return False
        if isinstance(weight, RoundedRows):
            takes_fp8 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
            return weight.steps.dtype == torch.int8 or takes_fp8
        groups = weight.groups if isinstance(weight, OrderedGroups) else weight
        out_features, in_features = groups.steps.shape
        return fits_int4(out_features, in_features, groups.group)

    return keep


def put_in(model: nn.Module, weights: Mapping[str, Weight], device: torch.device) -> None:
    """Replace the named linear layers of `model` by ones that multiply these weights."""
    for name, weight in weights.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear), name
        model.set_submodule(name, _layer(weight, layer.bias, device))


def in_force(quantization: Quantization, kept: Mapping[str, Weight]) -> str:
    """The format of linear layers: the setting, else the format of the checkpoint's weights."""
    if quantization != "none" or not kept:
        return quantization
    rows = [weight.steps.dtype for weight in kept.values() if isinstance(weight, RoundedRows)]
    return "int4" if len(rows) < len(kept) else "int8" if torch.int8 in rows else "fp8"


def _layer(weight: Weight, bias: torch.Tensor | None, device: torch.device) -> nn.Module:
    bias = None if bias is None else bias.to(device)
    if isinstance(weight, RoundedRows):
        kind = Int8Linear if weight.steps.dtype == torch.int8 else Fp8Linear
        # a copy: as loaded, steps are a view of a mapped file
        return kind(RoundedRows(weight.steps.to(device, copy=True), weight.scales.to(device)), bias)
    groups, order = (weight.groups, weight.order.to(device)) if isinstance(weight, OrderedGroups) else (weight, None)
    assert isinstance(groups, RoundedGroups)
    steps, scales, middles = (part.to(device) for part in (groups.steps, groups.scales, groups.middles))
    return Int4Linear(RoundedGroups(steps, scales, middles), bias, order)


def _rounded(layer: nn.Linear, quantization: Quantization) -> nn.Module | None:
    """The layer with its weight rounded, or None if its sizes do not fit."""
    weight, bias = layer.weight.detach(), layer.bias
    out_features, in_features = weight.shape
    if quantization == "int4":
        fits = fits_int4(out_features, in_features, INT4_GROUP)
        return Int4Linear(round_groups(weight, INT4_GROUP), bias) if fits else None
    if not fits_16(out_features, in_features) and weight.device.type == "cuda":
        return None
    if quantization == "int8":
        return Int8Linear(round_rows(weight, torch.int8), bias)
    return Fp8Linear(round_rows(weight, torch.float8_e4m3fn), bias)
