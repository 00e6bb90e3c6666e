"""What runs in every SDK worker process: the EngineClient, the election of a manager, tokenizing."""

from .engine_client import EngineClient
from .generation import Generation
from .results import Embedding, Score

__all__ = ["Embedding", "EngineClient", "Generation", "Score"]
