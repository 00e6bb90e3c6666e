"""Linear layers that read the same input (query, key and value; gate and up) as one product.

Every product has a fixed price: on a CPU some 12 µs, on a GPU a kernel too small to fill it. Knows no model beyond
these names; not what multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

_SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Siblings that transformers' models call with one and the same tensor."""

Product = Callable[[torch.Tensor], torch.Tensor]
"""[..., in_features] to [..., out_features]."""


class SharedProduct:
    """One product for several layers: whichever is called first computes it, the others take their part."""

    def __init__(self, multiply: Product, sizes: list[int]) -> None:
        """`sizes` are the layers' shares of the product's columns, in their order."""
        self._multiply = multiply
        self._sizes = sizes
        self._input: torch.Tensor | None = None
        self._parts: list[torch.Tensor | None] = []

    def part(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """Columns of the product with `x` that belong to layer `index`, as a view."""
        if self._input is not x or (part := self._parts[index]) is None:
            self._input, self._parts = x, list(self._multiply(x).split(self._sizes, dim=-1))
            part = self._parts[index]
            assert part is not None
        self._parts[index] = None
        if all(other is None for other in self._parts):
            self._input = None
        return part


class SharedLinear(nn.Module):
    """Replaces one of the layers of a SharedProduct."""

    def __init__(self, product: SharedProduct, index: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._product = product
        self._index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features], a view of the whole product."""
        return self._product.part(x, self._index)


def merge(parent: nn.Module, product_of: Callable[[torch.Tensor, torch.Tensor | None], Product]) -> int:
    """Replace `parent`'s linear layers of the names above, where it has them and all or none have a bias, by parts of
    a product made of their weights and biases; how many were replaced.
    """
    count = 0
    for names, layers in _siblings(parent):
        biases: list[torch.Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        weight = torch.cat([layer.weight.detach() for layer in layers])
        multiply = product_of(weight, torch.cat(biases).detach() if biases else None)
        product = SharedProduct(multiply, [layer.out_features for layer in layers])
        for index, (name, layer) in enumerate(zip(names, layers, strict=True)):
            setattr(parent, name, SharedLinear(product, index, layer.in_features, layer.out_features))
        count += len(layers)
    return count


def merge_linears(model: nn.Module) -> int:
    """Merge what can be in `model`, whose weights stay in their format; how many layers there were.

    Each module's former weights are freed before the next module's are joined: at most one module is there twice.
    """
    count = 0
    for parent in [
        module for module in model.modules() if type(module) is not nn.Linear
    ]:  # holds no nn.Linear, so that its weight can be freed
        if merged := merge(parent, _plain_product):
            count += merged
            _give_back()
    return count


def _plain_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    def multiply(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, weight, bias)

    return multiply


def _give_back() -> None:
    """Return freed memory of a GPU: torch would keep it in pieces, each too small for the next product's weights."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _siblings(parent: nn.Module) -> Iterator[tuple[tuple[str, ...], list[nn.Linear]]]:
    """The layers to be merged, with their names."""
    for names in _SAME_INPUT:
        layers = [layer for name in names if type(layer := getattr(parent, name, None)) is nn.Linear]
        is_empty = any(layer.weight.numel() == 0 for layer in layers)
        if len(layers) == len(names) and len({layer.bias is None for layer in layers}) == 1 and not is_empty:
            yield names, layers
