"""The name, folder or gs:// address of a model or an adapter, and the verified local files it stands for."""

from .adapters import find_adapter
from .resolving import resolve, resolve_tokenizer

__all__ = ["find_adapter", "resolve", "resolve_tokenizer"]
