"""Greedy outputs in float32 equal transformers' own generation token for token: alone, and in any company."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig

from model_manager.engine.engine import LLMEngine
from model_manager.engine.model_loader import load_model
from model_manager.engine.stopping import StopRules
from model_manager.wire.config import ModelConfig
from model_manager.wire.messages import FinishReason, Output, Request
from model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine import random_checkpoints

_LENGTHS = (1, 5, 16, 33, 64, 100, 17, 48)
_OUTPUTS = (60, 70, 30, 35, 12, 40, 1, 50)


class _Golden:
    """A checkpoint, the prompts, and what transformers generates for each."""

    def __init__(self, folder: Path, config: PreTrainedConfig) -> None:
        self.folder = folder
        model = random_checkpoints.write(folder, config)
        generator = torch.Generator().manual_seed(7)
        self.prompts: list[list[int]] = [
            torch.randint(2, random_checkpoints.VOCAB, (length,), generator=generator).tolist() for length in _LENGTHS
        ]
        self.outputs = [
            random_checkpoints.greedy(model, prompt, count)
            for prompt, count in zip(self.prompts, _OUTPUTS, strict=True)
        ]

    def engine(self, **settings: Any) -> LLMEngine:
        defaults: dict[str, Any] = {"model": "golden", "num_threads": 1, "kv_cache_gib": 0.05, "prefix_caching": False}
        config = ModelConfig(**defaults | settings)
        loaded = load_model(config, self.folder)
        return LLMEngine(loaded.runner, loaded.info, config, StopRules(frozenset(), None))

    def request(self, index: int, **params: Any) -> Request:
        name = f"{index}{'-sampled' if params else ''}"
        sampling = SamplingParams(max_tokens=_OUTPUTS[index], **params)
        return Request(request_id=name, prompt_token_ids=self.prompts[index], params=sampling)

    def requests(self) -> list[Request]:
        return [self.request(index) for index in range(len(_LENGTHS))]


@pytest.fixture(scope="module", params=random_checkpoints.ALL, ids=lambda make: make.__name__)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Golden:
    make: Callable[[], PreTrainedConfig] = request.param
    return _Golden(tmp_path_factory.mktemp("golden"), make())


def _finish(engine: LLMEngine, arrivals: Iterable[Request] = ()) -> dict[str, Output]:
    """Step until nothing is left, a request arriving before each step while there are any."""
    outputs: dict[str, Output] = {}
    coming = deque(arrivals)
    while coming or engine.has_work():
        if coming:
            engine.add(coming.popleft())
        result = engine.step()
        engine.check_integrity()
        assert result.failures == []
        outputs |= {output.request_id: output for output in result.outputs}
    assert engine.stats().blocks_used == 0
    return outputs


def _check(golden: _Golden, outputs: dict[str, Output]) -> None:
    assert [outputs[str(index)].token_ids for index in range(len(_LENGTHS))] == golden.outputs


def test_the_outputs_vary(golden: _Golden) -> None:
    """Otherwise equality would say little."""
    assert all(len(set(output)) > len(output) // 5 for output in golden.outputs)


def test_alone(golden: _Golden) -> None:
    engine = golden.engine()
    outputs: dict[str, Output] = {}
    for index in range(len(_LENGTHS)):
        outputs |= _finish(engine, [golden.request(index)])
    _check(golden, outputs)
    assert {output.finish_reason for output in outputs.values()} == {FinishReason.LENGTH}


def test_all_at_once(golden: _Golden) -> None:
    engine = golden.engine()
    for request in golden.requests():
        engine.add(request)
    _check(golden, _finish(engine))


@pytest.mark.parametrize("block_size", [8, 64])
def test_arriving_one_by_one(golden: _Golden, block_size: int) -> None:
    engine = golden.engine(block_size=block_size)
    _check(golden, _finish(engine, golden.requests()))


def test_with_prompts_computed_in_small_chunks(golden: _Golden) -> None:
    engine = golden.engine(max_num_seqs=6, max_num_batched_tokens=7)
    _check(golden, _finish(engine, golden.requests()))


def test_with_a_cache_so_small_that_sequences_are_preempted(golden: _Golden) -> None:
    engine = golden.engine(kv_cache_gib=_gib_for(golden, tokens=256), block_size=8)
    for request in golden.requests():
        engine.add(request)
    _check(golden, _finish(engine))
    assert engine.stats().preemptions > 0


def test_with_prompts_found_in_the_prefix_cache(golden: _Golden) -> None:
    engine = golden.engine(prefix_caching=True)
    for _ in range(2):
        for request in golden.requests():
            engine.add(request)
        outputs = _finish(engine)
        _check(golden, outputs)
    assert outputs["5"].cached_tokens > 0
    assert engine.stats().cached_tokens > 0


def test_beside_sampled_requests(golden: _Golden) -> None:
    engine = golden.engine()
    for index in range(len(_LENGTHS)):
        engine.add(golden.request(index, temperature=1.5, top_p=0.9, seed=index))
        engine.add(golden.request(index))
    outputs = _finish(engine)
    _check(golden, outputs)
    assert [outputs[f"{index}-sampled"].token_ids for index in range(len(_LENGTHS))] != golden.outputs


def test_going_on_from_tokens_that_an_engine_now_dead_had_generated(golden: _Golden) -> None:
    engine = golden.engine()
    for index, output in enumerate(golden.outputs):
        fresh = golden.request(index)
        engine.add(
            Request(
                request_id=fresh.request_id,
                prompt_token_ids=fresh.prompt_token_ids,
                params=fresh.params,
                output_token_ids=output[: len(output) // 2],
            )
        )
    _check(golden, _finish(engine))


def _gib_for(golden: _Golden, tokens: int) -> float:
    """The setting that gives a cache of so many tokens."""
    info = golden.engine(kv_cache_gib=0.001).info
    return 0.001 * tokens / (info.num_blocks * info.block_size) * 1.0001
