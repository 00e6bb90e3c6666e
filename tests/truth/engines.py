"""The real engine in this process, on the embedded model, and what requests come to in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import millrace.model_manager.store
from millrace.model_manager.engine.interface import Engine
from millrace.model_manager.engine.process import load_engine
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.engine_messages import StartEngine
from millrace.model_manager.wire.request import Failure, Output, Request
from tests.model_manager.engine.whole_engines import ended

FOLDER = Path(millrace.model_manager.store.__file__).parent / "embedded" / EMBEDDED_MODEL


def started(folder: Path = FOLDER, **settings: Any) -> Engine:
    """An engine of the model in a folder."""
    config = ModelConfig(model=str(folder), **{"kv_cache_gib": 0.2} | settings)
    return load_engine(StartEngine(config, str(folder), 1.0))


def answers(engine: Engine, requests: Sequence[Request]) -> dict[str, Output | Failure]:
    """Answers of requests that run together, by request id."""
    outputs, failures = ended(engine, requests)
    return {**outputs, **failures}
