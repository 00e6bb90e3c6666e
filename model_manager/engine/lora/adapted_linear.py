"""Linear layers that add a LoRA adapter's part to the rows of a step that use it.

y += scale · B A x (Hu et al., https://arxiv.org/abs/2106.09685), with the adapter of each row's sequence, so that one
step computes sequences of several adapters and of none. Knows slots; not requests, nor who is loaded when.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import nn

from ...wire.config import ModelConfig
from ...wire.request import Adapter
from ..interface import StepInput
from ..quantization.precision import reads_weight
from .adapter import Factors, read_adapter

log = logging.getLogger(__name__)

_ROUTED = ".experts."
"""Layers of experts get only rows routed to them, not a step's rows in order."""


class LoraLayers:
    """The layers of one model that take adapters (AdapterSlots of interface.py), and who has which in this step."""

    def __init__(self, model: Any, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        """`model`: as loaded. Its layers may be replaced later, under the same names."""
        self.num_slots = config.max_loras
        self.groups: list[tuple[int, torch.Tensor]] = []
        """This step's slots, and for each the int64 [rows] of T that use it."""
        self._max_rank = config.max_lora_rank
        self._dtype = dtype
        self._device = device
        output = model.get_output_embeddings()
        self._sizes = {
            name: (module.out_features, module.in_features)
            for name, module in model.named_modules()
            if hasattr(module, "out_features")
            and module is not output
            and _ROUTED not in name
            and not reads_weight(*_parent(model, name))
        }
        self._layers: dict[str, LoraLinear] = {}

    @property
    def most_bytes(self) -> int:
        """Bytes of adapters of the highest rank in all slots."""
        values = sum(out_features + in_features for out_features, in_features in self._sizes.values())
        return int(self.num_slots * self._max_rank * values * self._dtype.itemsize)

    def stand_in(self, model: Any) -> None:
        """Wrap each of the model's layers in one that takes adapters."""
        for name in self._sizes:
            self._layers[name] = LoraLinear(model.get_submodule(name), self)
            model.set_submodule(name, self._layers[name])

    def load(self, slot: int, adapter: Adapter) -> None:
        """See AdapterSlots."""
        factors = read_adapter(adapter, self._sizes, self._max_rank)
        placed = {name: each.to(self._dtype, self._device) for name, each in factors.items()}
        for name, layer in self._layers.items():
            layer.put(slot, placed.get(name))
        log.info("adapter %s is in slot %d: %d layers", adapter.name, slot, len(placed))

    def begin(self, step: StepInput) -> None:
        """Set the step that the layers compute next."""
        self.groups = []
        if len(step.adapters):
            slots = np.repeat(step.adapters, np.diff(step.query_starts))
            for slot in np.unique(slots[slots >= 0]).tolist():
                self.groups.append((slot, torch.from_numpy(np.flatnonzero(slots == slot)).to(self._device)))


def _parent(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that a layer belongs to, and its name there."""
    path, _, own = name.rpartition(".")
    return model.get_submodule(path), own


class LoraLinear(nn.Module):
    """A linear layer, whatever it multiplies with, and the factors of adapters for it."""

    def __init__(self, base: nn.Module, layers: LoraLayers) -> None:
        super().__init__()
        self.base = base
        self.out_features, self.in_features = base.out_features, base.in_features
        self._layers = layers
        self._factors: dict[int, Factors] = {}

    def put(self, slot: int, factors: Factors | None) -> None:
        """Set the factors in a slot; None for an adapter without this layer."""
        self._factors.pop(slot, None)
        if factors is not None:
            self._factors[slot] = factors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        y: torch.Tensor = self.base(x)
        for slot, rows in self._layers.groups:
            if slot in self._factors:
                down, up = self._factors[slot].down, self._factors[slot].up
                part = x.reshape(-1, x.shape[-1])[rows].to(down.dtype) @ down.t() @ up.t()
                y.view(-1, y.shape[-1]).index_add_(0, rows, part.to(y.dtype))
        return y
