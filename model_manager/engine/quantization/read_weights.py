"""Which linear layers stay as they are: other code reads their weights. Imports no model code, which is slow."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import nn


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
