"""A model's name, folder or gs:// address, and the verified local files it stands for."""

from model_manager.store.resolving import resolve

__all__ = ["resolve"]
