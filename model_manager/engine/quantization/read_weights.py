"""Which linear layers stay as they are: other code reads their weights. Imports no model code, which is slow."""

from __future__ import annotations

import inspect

from torch import nn


def reads_weight(parent: nn.Module, name: str) -> bool:
    """True if the code of `parent` reads the weight of its layer `name` itself, as some routers of experts do."""
    try:
        return f"self.{name}.weight" in inspect.getsource(type(parent))
    except (OSError, TypeError):
        return False
