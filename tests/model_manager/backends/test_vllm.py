"""vLLM in the inference process, as its users have it: `millrace engines install vllm`."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.scenarios import CAPITALS, PATIENCE, Case, Running, Scenarios, opened
from tests.model_manager.backends.scenarios import running as both_engines
from tests.model_manager.engine import adapters_made_here, random_checkpoints
from tests.model_manager.store.checkpoints import EMBEDDED
from tests.pipelines.job.job_processes import nothing_is_left

pytestmark = pytest.mark.engines

CASE = Case(
    "vllm",
    settings={"dtype": "float32", "max_num_seqs": 16, "backend_options": {"enforce_eager": True}},
    constraints=("regex", "json_schema", "json", "choice", "grammar"),
    differ=1,
)


@pytest.fixture(scope="module")
def running(engine_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    engine_python(CASE.backend)
    yield from both_engines(CASE, tmp_path_factory.mktemp("engines") / "run")


class TestVllm(Scenarios):
    """All scenarios."""

    def test_scores_are_those_of_our_engine(self, running: Running) -> None:
        one, other = (
            client.score(CAPITALS[0], [" Paris", " Rome is"], request_id=f"score-{n}").result(PATIENCE)
            for n, client in enumerate((running.client, running.ours))
        )
        for mine, theirs in zip(one, other, strict=True):
            assert mine.prompt_logprobs is not None
            assert theirs.prompt_logprobs is not None
            assert mine.prompt_logprobs.logprobs == pytest.approx(theirs.prompt_logprobs.logprobs, abs=0.01)

    def test_embeddings_are_those_of_our_engine(self, running: Running, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match="this vLLM was loaded to generate: set runner=pooling among"):
            running.client.embed("x", request_id="generating").result(PATIENCE)
        prompts = [*CAPITALS, "a", "word " * 300]  # the last one takes two steps
        config = CASE.config.for_task("embed")
        with EngineClient.open(config, manager=ManagerConfig(linger=0.0), runtime=tmp_path / "run") as client:
            for pooling, normalize in (("last", True), ("mean", True), ("mean", False)):
                one, other = (embedded(each, prompts, pooling, normalize) for each in (client, running.ours))
                assert np.abs(one - other).max() < 1e-4 * np.abs(other).max()
            with pytest.raises(InvalidRequest, match="generate: this vLLM was loaded to embed"):
                client.submit("x", SamplingParams(), request_id="embedding").result(PATIENCE)

    def test_the_beginning_that_rows_share_is_computed_once_within_a_salt(self, running: Running) -> None:
        begun = "".join(f"{n} and {n + 1} are numbers. " for n in range(40))
        first, again, salted = (
            running.answer(f"{begun}{question}", max_tokens=12, cache_salt=salt)
            for question, salt in (("What is a?", ""), ("Who is b?", ""), ("Who is b?", "another"))
        )
        assert (first.cached_tokens, salted.cached_tokens) == (0, 0)
        block = running.client.info.block_size
        assert again.cached_tokens % block == 0
        assert again.prompt_tokens - 2 * block < again.cached_tokens < again.prompt_tokens
        assert again.token_ids == salted.token_ids

    def test_without_the_prefix_cache_every_row_is_computed_whole(self, running: Running, tmp_path: Path) -> None:
        prompt = "".join(f"{n} and {n + 1} are numbers. " for n in range(40))
        with opened(CASE, resolve(EMBEDDED_MODEL), tmp_path / "run", prefix_caching=False) as client:
            found = [running.submit(prompt, client, max_tokens=4).result(PATIENCE) for _ in range(2)]
        assert [each.cached_tokens for each in found] == [0, 0]

    def test_each_row_is_answered_by_its_own_adapter(self, running: Running, tmp_path: Path) -> None:
        """As by models with the adapter merged into their weights, in transformers."""
        model: Any = LlamaForCausalLM.from_pretrained(resolve(EMBEDDED_MODEL), dtype=torch.float32)
        targets = ("q_proj", "v_proj", "down_proj")
        adapters = {
            name: adapters_made_here.write(tmp_path / name, model, targets, seed=seed, size=0.2)
            for seed, name in enumerate("ab")
        }
        models = {"": model} | {name: adapters_made_here.merged(model, each, 2.0) for name, each in adapters.items()}
        names = {name: str(tmp_path / name) if name else "" for name in models}
        with opened(CASE, resolve(EMBEDDED_MODEL), tmp_path / "run", max_loras=1, max_lora_rank=8) as client:
            prompts = {each: client.tokenizer.encode(each) for each in CAPITALS[:4]}
            asked = {
                (name, prompt): running.submit(ids, client, max_tokens=12, min_tokens=12, adapter=names[name])
                for prompt, ids in prompts.items()
                for name in models
            }
            found = {key: future.result(PATIENCE).token_ids for key, future in asked.items()}
        wanted = {
            (name, prompt): random_checkpoints.greedy(models[name], ids, 12)
            for prompt, ids in prompts.items()
            for name in models
        }
        different = {key: (found[key], wanted[key]) for key in wanted if found[key] != wanted[key]}
        assert len(different) <= running.case.differ, different
        assert all(wanted["a", prompt] != wanted["", prompt] != wanted["b", prompt] for prompt in CAPITALS[:4])


def embedded(client: EngineClient, prompts: list[str], pooling: Any, normalize: bool) -> Any:
    """[prompt, hidden size]"""
    asked = [
        client.embed(each, request_id=f"{pooling}-{normalize}-{n}", pooling=pooling, normalize=normalize)
        for n, each in enumerate(prompts)
    ]
    return np.stack([future.result(PATIENCE).vector for future in asked])


def test_a_model_split_over_two_processes_answers_as_it_does_whole_over_a_death_that_leaves_none(
    engine_python: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of vLLM's own processes, on a CPU; the embedded model's 3 KV heads cannot be halved."""
    engine_python("vllm")
    runtime, folder = tmp_path / "run", tmp_path / "model"
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(runtime))
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_size": 128}
    sizes = random_checkpoints.common() | {"vocab_size": 1536, "max_position_embeddings": 512}
    model = random_checkpoints.write(folder, LlamaConfig(**heads, **sizes))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(EMBEDDED / name, folder / name)
    config = ModelConfig.parse(
        {"backend": "vllm", **CASE.settings, "model": str(folder), "tensor_parallel": 2, "kv_cache_gib": 1.0}
    )
    with EngineClient.open(config, manager=ManagerConfig(linger=0.0), runtime=runtime) as client:
        running = Running(CASE, client, client, runtime)
        prompts = [client.tokenizer.encode(each) for each in CAPITALS[:4]]
        begun = threading.Event()
        asked = [
            running.submit(ids, on_delta=lambda _: begun.set(), max_tokens=200, ignore_eos=True) for ids in prompts
        ]
        assert begun.wait(PATIENCE)
        pid = running.engine_pid()
        parts = [each for each in psutil.Process(pid).children(recursive=True) if each.name().startswith("VLLM")]
        assert len(parts) == 2
        os.kill(pid, signal.SIGKILL)
        found = [future.result(PATIENCE) for future in asked]
        assert any(each.setbacks for each in found)
    wanted = [random_checkpoints.greedy(model, ids, 200) for ids in prompts]
    assert sum(one.token_ids != other for one, other in zip(found, wanted, strict=True)) <= CASE.differ
    nothing_is_left(runtime)
