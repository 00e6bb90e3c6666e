"""What back ends read of a model's folder, without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..wire.config import ModelConfig
from ..wire.errors import ConfigError


def eos_token_ids(folder: Path) -> list[int]:
    """The tokens that end an answer: the generation config's, else the config's."""
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder / name).get("eos_token_id")
        if found is not None:
            return [int(each) for each in found] if isinstance(found, list) else [int(found)]
    return []


def longest(config: ModelConfig, fields: dict[str, Any]) -> int:
    """Tokens that prompt and output may take together, by the setting and the fields of the model's config.json.

    Raises ConfigError for a `max_model_len` beyond the model's positions: an engine may answer there, with nonsense.
    """
    positions = fields.get("max_position_embeddings")
    if config.max_model_len is None:
        return int(positions or 2048)
    if positions and config.max_model_len > int(positions):
        raise ConfigError(f"max_model_len={config.max_model_len}: this model takes at most {positions}")
    return config.max_model_len


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file; empty where there is none."""
    if not path.is_file():
        return {}
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields
