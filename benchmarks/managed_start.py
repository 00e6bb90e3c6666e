"""Loads by a manager, as clients wait for them: its first one, with the manager's own start, and one after that.

Knows millrace alone. The client is this process, so its imports are not counted.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.memory import peak_rss_mb
from benchmarks.sides.millrace import settings
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.status import read_status
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams

FIRST, SECOND = "millrace-first-load", "millrace-second-load"
_PROMPT = list(range(100, 228))
_ENDS_WITHIN = 60.0


@dataclass(frozen=True)
class ManagedStart:
    """One load; what benchmarks.start asks of a contestant."""

    first_token_s: float
    load_s: float
    """Of the model by the engine: a part of it."""
    peak_rss_mb: float
    """Of the manager and all that it started; pages that they share count for each."""
    memory: dict[str, float] = field(default_factory=dict)


def load(name: str, folder: Path, dtype: str) -> ManagedStart:
    """The first load of a new manager, or the load that follows when its engine is killed."""
    config = ModelConfig.parse(settings(folder, dtype))
    with tempfile.TemporaryDirectory(prefix="millrace-") as place:
        runtime, began = Path(place) / "run", time.perf_counter()
        with EngineClient.open(config, runtime=runtime, manager=ManagerConfig(linger=0), chat=False) as client:
            _first_token(client, FIRST)
            if name == SECOND:
                began = time.perf_counter()
                os.kill(_engine(runtime), signal.SIGKILL)
                _first_token(client, SECOND)
            seconds = time.perf_counter() - began
            manager = psutil.Process(psutil.Process(_engine(runtime)).ppid())
            started = ManagedStart(seconds, client.info.load_seconds, peak_rss_mb(manager.pid, f"of={runtime}"))
        manager.wait(_ENDS_WITHIN)
    return started


def _first_token(client: EngineClient, name: str) -> None:
    client.submit(_PROMPT, SamplingParams(max_tokens=1, ignore_eos=True), request_id=name).result()


def _engine(runtime: Path) -> int:
    status = read_status(runtime)
    assert status is not None
    return status.models[0].pids[0]
