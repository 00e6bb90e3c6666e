"""Flags that several commands take: which model runs and how, where its manager is, what is logged. Without Beam."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.config import EMBEDDED_MODEL, PLACE_SETTINGS, ManagerConfig, ModelConfig
from millrace.model_manager.wire.manager_place import ManagerPlace, manager_place

from .backend import add_backend
from .from_settings import add_settings, given

_MODEL = ("model", "revision", "dtype", "quantization", "kv_cache_dtype", "device", "max_model_len")
_LEVELS = ("debug", "info", "warning", "error")


def add_model(group: Any) -> list[str]:
    """The model and its formats; returns the names of the settings."""
    return add_settings(group, ModelConfig, leave_out=set(ModelConfig.__struct_fields__) - set(_MODEL))


def told_model(model: ModelConfig) -> str:
    """The model's name; of the embedded one also that --model names another, since it may have been forgotten."""
    if model.model != EMBEDDED_MODEL:
        return model.model
    what = "the small demo model" if BACKENDS[model.backend].fetches_files else "as servers are asked for it"
    return f"{model.model}, {what}: --model names yours"


def add_engine(group: Any) -> list[str]:
    """How the engine runs it, and which engine that is."""
    backend = add_backend(group)
    return add_settings(group, ModelConfig, leave_out={*_MODEL, *backend})


def add_manager(add_group: Callable[[str], Any]) -> list[str]:
    """How the manager watches engines and clients."""
    return add_settings(add_group("manager (times in seconds)"), ManagerConfig)


def add_place(group: Any) -> None:
    """--manager and --manager_key_file."""
    add_settings(group, ManagerConfig, leave_out=set(ManagerConfig.__struct_fields__) - set(PLACE_SETTINGS))


def place_of(flags: argparse.Namespace) -> ManagerPlace:
    """The place that they name, else the environment's; raises ConfigError."""
    return manager_place(ManagerConfig.parse(given(flags, PLACE_SETTINGS)))


def add_logging(group: Any) -> None:
    """Adds the flags, which `log_level` reads."""
    group.add_argument("--verbose", action="store_true", help="Log what happens, and show full stack traces.")
    group.add_argument(
        "--log_level", choices=_LEVELS, default="warning", help="Lowest level of messages to log. Default: warning."
    )


def log_level(known: argparse.Namespace) -> str:
    """The level that the flags say."""
    return "info" if known.verbose and known.log_level == "warning" else str(known.log_level)
