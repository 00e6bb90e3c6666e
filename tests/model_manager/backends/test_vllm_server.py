"""vLLM's own OpenAI server, started by millrace: its greedy answers are those of our engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.client import EngineClient
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.messages import Output
from millrace.model_manager.wire.sampling import SamplingParams

PATIENCE = 300.0
PROMPTS = [f"Once upon a time number {index}" for index in range(24)]
FLAGS = "--max-model-len 512 --gpu-memory-utilization 0.2 --enforce-eager --dtype float32"


def greedy(client: EngineClient) -> list[Output]:
    params = [SamplingParams(max_tokens=4 + index % 9) for index in range(len(PROMPTS))]
    futures = [client.submit(prompt, each, request_id=prompt) for prompt, each in zip(PROMPTS, params, strict=True)]
    return [future.result(PATIENCE) for future in futures]


def opened(folder: Path, **settings: Any) -> EngineClient:
    return EngineClient.open(
        ModelConfig.parse(settings),
        manager=ManagerConfig(linger=0),
        runtime=folder,
        job="job",
        chat=False,
        manager_command=MANAGER_COMMAND,
    )


@pytest.mark.engines
def test_vllms_server_answers_as_our_engine_does_and_refuses_what_is_too_long(
    engine_python: Callable[[str], Path], tmp_path: Path
) -> None:
    program = f"{engine_python('vllm')} -m vllm.entrypoints.openai.api_server --model {{model}} --port {{port}} {FLAGS}"
    options = {"preset": "vllm", "dialect": "openai-completions", "command": program}
    with opened(tmp_path / "ours", model=EMBEDDED_MODEL, dtype="float32", num_threads=1) as ours:
        expected = greedy(ours)
    model = str(resolve(EMBEDDED_MODEL))
    with opened(tmp_path / "theirs", model=model, backend="server", backend_options=options) as client:
        found = greedy(client)
        assert [output.text for output in found] == [output.text for output in expected]
        assert [output.num_generated for output in found] == [output.num_generated for output in expected]
        assert [output.prompt_tokens for output in found] == [output.prompt_tokens for output in expected]
        assert client.info.max_model_len == 512

        choice = SamplingParams.parse({"constraint": {"choice": ["left", "right"]}, "temperature": 1.0, "seed": 7})
        assert client.submit("Go ", choice, request_id="choice").result(PATIENCE).text in ("left", "right")
        sampled = SamplingParams(temperature=1.0, top_k=20, seed=3, max_tokens=9)
        twice = [client.submit("Say", sampled, request_id=name).result(PATIENCE).text for name in "ab"]
        assert twice[0] == twice[1]
        with pytest.raises(InvalidRequest, match=r"answered 400: .*maximum context length"):
            client.submit("word " * 2000, SamplingParams(), request_id="long").result(PATIENCE)
