"""An engine on a checkpoint, and what it answers when it is stepped until nothing is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.interface import Engine
from millrace.model_manager.engine.loading.model_loader import LoadedModel, load_model
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.request import Failure, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams


def engine_of(loaded: LoadedModel, config: ModelConfig, **more: Any) -> LLMEngine:
    """An engine on a loaded model, which ends at no token of its own."""
    rules = StopRules(frozenset(), None)
    return LLMEngine(loaded.runner, loaded.info, config, rules, adapter_slots=loaded.adapter_slots, **more)


def load_engine(folder: Path, config: ModelConfig) -> LLMEngine:
    return engine_of(load_model(config, folder), config)


def ended(
    engine: Engine, requests: Sequence[Request] = (), arrivals: Iterable[Request] = ()
) -> tuple[dict[str, Output], dict[str, Failure]]:
    """Outputs and failures of requests that begin together, and of others that come one before each step."""
    outputs: dict[str, Output] = {}
    failures: dict[str, Failure] = {}
    for request in requests:
        engine.add(request)
    coming, steps = deque(arrivals), 0
    while coming or engine.has_work():
        if coming:
            engine.add(coming.popleft())
        result = engine.step()
        steps += 1
        if isinstance(engine, LLMEngine) and (steps % 4 == 0 or not engine.has_work()):
            engine.check_integrity()
        outputs |= {output.request_id: output for output in result.outputs}
        failures |= {failure.request_id: failure for failure in result.failures}
    assert engine.stats().blocks_used == 0
    return outputs, failures


def outputs_of(engine: Engine, requests: Sequence[Request] = (), arrivals: Iterable[Request] = ()) -> dict[str, Output]:
    """The outputs, where no request fails."""
    outputs, failures = ended(engine, requests, arrivals)
    assert not failures, failures
    return outputs


def greedy_tokens(engine: Engine, prompts: Iterable[tuple[Sequence[int], int]]) -> list[list[int]]:
    """The tokens of each prompt, which asks for so many; all run together."""
    requests = [Request(str(at), list(ids), SamplingParams(max_tokens=n)) for at, (ids, n) in enumerate(prompts)]
    outputs = outputs_of(engine, requests)
    return [outputs[request.request_id].token_ids for request in requests]
