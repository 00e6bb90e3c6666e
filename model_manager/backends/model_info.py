"""What every back end tells of a model, by its settings and its files, without transformers. Knows no engine."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..wire.config import ModelConfig
from ..wire.errors import ConfigError
from ..wire.status import ModelInfo

log = logging.getLogger(__name__)


def info_of(config: ModelConfig, folder: Path, started: float, **found: Any) -> ModelInfo:
    """The settings of a model, and what its engine, which loads it since `started`, has found."""
    settings: dict[str, Any] = {"max_num_seqs": config.max_num_seqs, "revision": config.revision or ""}
    seconds = time.monotonic() - started
    return ModelInfo(name=config.model, folder=str(folder), load_seconds=seconds, **settings | found)


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file; empty where there is none."""
    if not path.is_file():
        return {}
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields


def eos_token_ids(folder: Path) -> list[int]:
    """The tokens that end an answer: the generation config's, else the config's."""
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder / name).get("eos_token_id")
        if found is not None:
            return [int(each) for each in found] if isinstance(found, list) else [int(found)]
    return []


def longest(config: ModelConfig, fields: Mapping[str, Any]) -> int:
    """Tokens that prompt and output may take together, by the setting and the fields of the model's config.json.

    Raises ConfigError for a `max_model_len` beyond the model's positions: an engine may answer there, with nonsense.
    """
    positions = fields.get("max_position_embeddings")
    if config.max_model_len is None:
        return int(positions or 2048)
    if positions and config.max_model_len > int(positions):
        raise ConfigError(f"max_model_len={config.max_model_len}: this model takes at most {positions}")
    return config.max_model_len


def declared_dtype(fields: Mapping[str, Any]) -> str:
    """The type of a checkpoint's weights, by the fields of its config.json."""
    return str(fields.get("dtype") or fields.get("torch_dtype") or "float32")


def computing_dtype(config: ModelConfig, declared: str, supported: Collection[str], engine: str) -> str:
    """The type that an engine computes in: `dtype`, which is `declared` where it says auto; float32 in place of a
    declared one that is not supported, which is logged. Raises ConfigError if `dtype` names one that is not.
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
