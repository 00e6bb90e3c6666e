"""What runs in every SDK worker process: the EngineClient, the election of a manager, tokenizing."""

from .engine_client import EngineClient

__all__ = ["EngineClient"]
