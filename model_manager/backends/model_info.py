"""What every back end tells of a model that it has loaded. Knows no engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..wire.config import ModelConfig
from ..wire.status import ModelInfo


def info_of(config: ModelConfig, folder: Path, started: float, **found: Any) -> ModelInfo:
    """The settings of a model, and what its engine, which loads it since `started`, has found."""
    settings: dict[str, Any] = {"max_num_seqs": config.max_num_seqs, "revision": config.revision or ""}
    seconds = time.monotonic() - started
    return ModelInfo(name=config.model, folder=str(folder), load_seconds=seconds, **settings | found)
