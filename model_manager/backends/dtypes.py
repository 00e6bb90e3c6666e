"""The type that an engine computes in: the checkpoint's or `dtype`, if the processor has it. Knows no engine."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from ..wire.config import ModelConfig
from ..wire.errors import ConfigError

log = logging.getLogger(__name__)


def declared_dtype(fields: Mapping[str, Any]) -> str:
    """The type of a checkpoint's weights, by the fields of its config.json."""
    return str(fields.get("dtype") or fields.get("torch_dtype") or "float32")


def computing_dtype(config: ModelConfig, declared: str, supported: Collection[str], engine: str) -> str:
    """`dtype`, which is `declared` where it says auto; float32 in place of a declared one that is not supported, which
    is logged. Raises ConfigError if `dtype` names one that is not.
    """
    wanted = declared if config.dtype == "auto" else config.dtype
    if wanted in supported:
        return wanted
    if config.dtype != "auto":
        takes = ", ".join(("auto", *sorted(supported)))
        raise ConfigError(f"dtype={wanted!r}: {engine} does not compute in it on this machine: takes {takes}")
    log.warning(
        "%s: %s does not compute in %s, the checkpoint's type, on this machine: computes in float32",
        *(config.model, engine, wanted),
    )
    return "float32"
