"""vLLM's own OpenAI server, started by millrace: its greedy answers to chats equal our engine's.

An answer that goes on from its tokens goes on at the route of completions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.model_manager.client import EngineClient
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import Output
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.real_servers import PATIENCE, VLLM_SERVER, Family, family, kill, main_process
from tests.model_manager.backends.scenarios import CAPITALS, SCHEMA
from tests.model_manager.store.checkpoints import EMBEDDED
from tests.waiting import eventually

__all__ = ["family"]

END = json.loads((EMBEDDED / "config.json").read_bytes())["eos_token_id"]
PROMPTS = [f"Once upon a time number {index}" for index in range(24)]


def greedy(client: EngineClient) -> list[Output]:
    params = [SamplingParams(max_tokens=4 + index % 9) for index in range(len(PROMPTS))]
    futures = [client.submit(prompt, each, request_id=prompt) for prompt, each in zip(PROMPTS, params, strict=True)]
    return [future.result(PATIENCE) for future in futures]


def stopped(client: EngineClient) -> list[tuple[str, int | str | None]]:
    """Texts of answers up to a stop string, and which one came."""
    stops = ("la", "idr")  # of "Madridrid" the second one begins in one token and ends in the next
    params = SamplingParams(stop=stops, max_tokens=30, logit_bias={END: -100})
    futures = [client.submit(prompt, params, request_id=f"stops: {prompt}") for prompt in CAPITALS]
    found = [future.result(PATIENCE) for future in futures]
    assert {each.stop_reason for each in found} >= {*stops}, "no answer came to it"
    return [(each.text, each.stop_reason) for each in found]


def expect_constraints_held(client: EngineClient) -> None:
    """All that the preset names."""

    def answer(**constraint: Any) -> str:
        asked = {"constraint": constraint, "temperature": 1.0, "seed": 7, "max_tokens": 80}
        return client.submit("Go ", SamplingParams.parse(asked), request_id=str(constraint)).result(PATIENCE).text

    assert answer(choice=["left", "right"]) in ("left", "right")
    assert re.fullmatch("(yes|no){2,4}", answer(regex="(yes|no){2,4}"))
    found = json.loads(answer(json_schema=SCHEMA))
    assert found.keys() == {"n", "ok"}
    assert 0 <= found["n"] <= 99
    assert isinstance(json.loads(answer(json=True)), dict)


def opened(folder: Path, *, chat: bool = True, **settings: Any) -> EngineClient:
    return EngineClient.open(
        ModelConfig.parse(settings),
        manager=ManagerConfig(linger=0),
        runtime=folder,
        job="job",
        chat=chat,
        manager_command=MANAGER_COMMAND,
    )


@pytest.mark.engines
def test_vllms_server_answers_as_our_engine_does_and_is_started_again_when_it_is_killed(
    family: Family, engine_python: Callable[[str], Path], tmp_path: Path
) -> None:
    program = f"{engine_python('vllm')} {VLLM_SERVER}"
    options = {"preset": "vllm", "command": program}
    with opened(tmp_path / "ours", model=EMBEDDED_MODEL, dtype="float32", num_threads=1) as ours:
        expected = greedy(ours)
        expected_to_stop = stopped(ours)
    model = str(resolve(EMBEDDED_MODEL))
    with opened(tmp_path / "theirs", model=model, backend="server", backend_options=options) as client:
        found = greedy(client)
        assert [output.text for output in found] == [output.text for output in expected]
        assert [output.num_generated for output in found] == [output.num_generated for output in expected]
        assert [output.prompt_tokens for output in found] == [output.prompt_tokens for output in expected]
        assert client.info.max_model_len == 512

        assert stopped(client) == expected_to_stop
        expect_constraints_held(client)
        sampled = SamplingParams(temperature=1.0, top_k=20, seed=3, max_tokens=9)
        twice = [client.submit("Say", sampled, request_id=name).result(PATIENCE).text for name in "ab"]
        assert twice[0] == twice[1]
        with pytest.raises(InvalidRequest, match=r"answered 400: .*maximum context length"):
            client.submit("word " * 2000, SamplingParams(), request_id="long").result(PATIENCE)
        expect_the_same_after_a_kill(client, family)
    eventually(lambda: not family.left(), "the end of the server and of its processes")


@pytest.mark.engines
def test_embeddings_of_a_server_that_pools_are_those_of_our_engine(
    family: Family, engine_python: Callable[[str], Path], tmp_path: Path
) -> None:
    model, prompts = str(resolve(EMBEDDED_MODEL)), [*PROMPTS[:6], "word " * 100]
    options = {"preset": "vllm", "command": f"{engine_python('vllm')} {VLLM_SERVER} --runner pooling"}
    vectors = []
    for name, settings in (
        ("ours", {"dtype": "float32"}),
        ("theirs", {"backend": "server", "backend_options": options}),
    ):
        with opened(tmp_path / name, chat=False, model=model, **settings) as client:
            asked = [client.embed(each, request_id=each) for each in prompts]
            vectors.append(np.array([future.result(PATIENCE).vector for future in asked]))
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-4
    assert np.abs(vectors[0] - vectors[0][0]).max(axis=1)[1:].min() > 0.01, "else all prompts have one vector"
    eventually(lambda: not family.left(), "the end of the server and of its processes")


def expect_the_same_after_a_kill(client: EngineClient, family: Family) -> None:
    """The server is killed once the shortest of its answers is there."""

    def submitted(name: str) -> list[Future[Output]]:
        params = [SamplingParams(max_tokens=20 + 16 * index, ignore_eos=True) for index in range(len(PROMPTS))]
        return [
            client.submit(prompt, each, request_id=f"{name} {prompt}")
            for prompt, each in zip(PROMPTS, params, strict=True)
        ]

    whole = [future.result(PATIENCE) for future in submitted("whole")]
    for number in range(5):  # on a busy machine the server may be far ahead of its kill
        disturbed = submitted(f"disturbed {number}")
        wait(disturbed, PATIENCE, FIRST_COMPLETED)
        kill(main_process(family, "vllm.entrypoints.openai.api_server"))
        found = [future.result(PATIENCE) for future in disturbed]
        assert [each.num_generated for each in found] == [each.num_generated for each in whole]
        if any(each.recomputed_tokens > each.prompt_tokens for each in found):  # one may be cut before its first token
            break
    else:
        raise AssertionError("no server was given the tokens that had come of a row before its kill")
    different = [(one.text, other.text) for one, other in zip(found, whole, strict=True) if one.text != other.text]
    assert len(different) <= 1, different  # rounding decides between two tokens
