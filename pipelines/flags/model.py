"""The flags that say which model runs and how; the same for jobs and for `serve`. Imports no Beam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.model_manager.wire.config import ManagerConfig, ModelConfig

from .backend import add_backend
from .from_settings import add_settings

_MODEL = ("model", "revision", "dtype", "quantization", "kv_cache_dtype", "device", "max_model_len")


def add_model(group: Any) -> list[str]:
    """The model and its formats; returns the names of the settings."""
    return add_settings(group, ModelConfig, leave_out=set(ModelConfig.__struct_fields__) - set(_MODEL))


def add_engine(group: Any) -> list[str]:
    """How the engine runs it, and which engine that is."""
    backend = add_backend(group)
    return add_settings(group, ModelConfig, leave_out={*_MODEL, *backend})


def add_manager(add_group: Callable[[str], Any]) -> list[str]:
    """How the manager watches engines and clients."""
    return add_settings(add_group("manager (times in seconds)"), ManagerConfig)
