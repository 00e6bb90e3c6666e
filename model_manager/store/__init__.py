"""From the name, folder or gs:// address of a model or an adapter to verified local files."""

from .adapters import find_adapter
from .resolving import resolve, resolve_tokenizer

__all__ = ["find_adapter", "resolve", "resolve_tokenizer"]
