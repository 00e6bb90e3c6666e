"""What runs in every SDK worker process: the EngineClient, the election of a manager, tokenizing."""

from model_manager.client.engine_client import EngineClient
from model_manager.client.generation import Generation
from model_manager.client.results import Embedding, Score
from model_manager.client.succession import Succession

__all__ = ["Embedding", "EngineClient", "Generation", "Score", "Succession"]
