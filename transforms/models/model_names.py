"""The models of one transform, by the names that rows give them in their column `model`. Knows no client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest

from ..elements.completions import MODEL_COLUMN


def further_models(first: ModelConfig, models: Sequence[str | ModelConfig]) -> tuple[ModelConfig, ...]:
    """The models beside the first one. A name takes the first one's settings, without its revision.

    Raises ConfigError for what is no model, and for models of one name.
    """
    if isinstance(models, str):
        raise ConfigError(f"models={models!r}: takes a list of models")
    taken = [first]
    for model in models:
        if not isinstance(model, str | ModelConfig):
            raise ConfigError(f"models: takes names or ModelConfigs, got {type(model).__name__}")
        config = model if isinstance(model, ModelConfig) else _named(first, model)
        if any(config.model == each.model for each in taken):
            raise ConfigError(f"models: {config.model} is there twice")
        taken.append(config)
    return tuple(taken[1:])


def _named(first: ModelConfig, name: str) -> ModelConfig:
    return msgspec.structs.replace(first, model=name, revision=None)


def chosen(columns: Mapping[str, Any], names: Sequence[str]) -> str:
    """The model that a row's columns name: one of `names`, by default the first. Raises InvalidRequest for others."""
    named = columns.get(MODEL_COLUMN)
    if named is None:
        return names[0]
    if named not in names:
        raise InvalidRequest(f"`{MODEL_COLUMN}` is {named!r}: takes one of the job's models ({', '.join(names)})")
    return str(named)
