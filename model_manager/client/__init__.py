"""What runs in every SDK worker process: the EngineClient, the election of a manager, tokenizing.

EngineClient is loaded when it is first used: what only starts a manager does without its imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine_client import EngineClient

__all__ = ["EngineClient"]


def __getattr__(name: str) -> Any:
    if name == "EngineClient":
        from .engine_client import EngineClient

        return EngineClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
