"""Greedy outputs in float32 equal transformers' own generation token for token: alone, and in any company."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.loading.model_loader import LoadedModel, load_model
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.batches import deal_blocks, make_step
from tests.model_manager.engine.tested_models import MODELS, ModelCase
from tests.model_manager.engine.whole_engines import engine_of, outputs_of

_LENGTHS = (1, 5, 16, 33, 64, 100, 17, 48)
_OUTPUTS = (8, 20, 8, 30, 12, 13, 1, 30)


class _Golden:
    """A checkpoint, loaded, the prompts, and what transformers generates for each."""

    def __init__(self, folder: Path, case: ModelCase) -> None:
        self.folder = folder
        model = random_checkpoints.write(folder, case.make())
        assert type(model).__name__ == case.architecture
        generator = torch.Generator().manual_seed(7)
        self.prompts: list[list[int]] = [
            torch.randint(2, random_checkpoints.VOCAB, (length,), generator=generator).tolist() for length in _LENGTHS
        ]
        self.outputs = [
            random_checkpoints.greedy(model, prompt, count)
            for prompt, count in zip(self.prompts, _OUTPUTS, strict=True)
        ]

        self._loaded = self._load(block_size=8)

    def engine(self, *, block_size: int = 8, num_blocks: int | None = None, **settings: Any) -> LLMEngine:
        """A new engine on the model that is loaded once; on a fresh one for another block size."""
        loaded = self._loaded if block_size == 8 else self._load(block_size)
        runner: Any = copy(loaded.runner)
        runner.num_blocks = num_blocks or runner.num_blocks
        return engine_of(replace(loaded, runner=runner), _config(block_size, **settings))

    @property
    def runner(self) -> Any:
        return self._loaded.runner

    def _load(self, block_size: int) -> LoadedModel:
        return load_model(_config(block_size), self.folder)

    def request(self, index: int, **params: Any) -> Request:
        name = f"{index}{'-sampled' if params else ''}"
        sampling = SamplingParams(max_tokens=_OUTPUTS[index], **params)
        return Request(request_id=name, prompt_token_ids=self.prompts[index], params=sampling)

    def requests(self) -> list[Request]:
        return [self.request(index) for index in range(len(_LENGTHS))]


def _config(block_size: int, **settings: Any) -> ModelConfig:
    defaults: dict[str, Any] = {"model": "golden", "num_threads": 1, "kv_cache_gib": 0.01, "prefix_caching": False}
    return ModelConfig(block_size=block_size, **defaults | settings)


def _golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Golden:
    return _Golden(tmp_path_factory.mktemp("golden"), request.param)


def _name(case: ModelCase) -> str:
    return case.make.__name__


golden = pytest.fixture(scope="module", params=[case for case in MODELS if case.every_case], ids=_name)(_golden)
any_golden = pytest.fixture(scope="module", params=[case for case in MODELS if not case.every_case], ids=_name)(_golden)


def _check(golden: _Golden, outputs: dict[str, Output]) -> None:
    assert [outputs[str(index)].token_ids for index in range(len(_LENGTHS))] == golden.outputs


def test_the_outputs_vary(golden: _Golden) -> None:
    """Otherwise equality would say little."""
    assert all(len(set(output)) > len(output) // 5 for output in golden.outputs)


def test_alone(golden: _Golden) -> None:
    engine = golden.engine()
    for index in (0, 2, 5):
        (output,) = outputs_of(engine, [golden.request(index)]).values()
        assert output.token_ids == golden.outputs[index]
        assert output.finish_reason == FinishReason.LENGTH


def test_all_at_once(golden: _Golden) -> None:
    engine = golden.engine()
    _check(golden, outputs_of(engine, golden.requests()))


def test_arriving_one_by_one_on_blocks_of_another_size(golden: _Golden) -> None:
    engine = golden.engine(block_size=64)
    _check(golden, outputs_of(engine, arrivals=golden.requests()))


def test_with_prompts_computed_in_small_chunks(golden: _Golden) -> None:
    engine = golden.engine(max_num_seqs=6, max_num_batched_tokens=7)
    _check(golden, outputs_of(engine, arrivals=golden.requests()))


def test_with_a_cache_so_small_that_sequences_are_preempted(golden: _Golden) -> None:
    engine = golden.engine(num_blocks=16)
    _check(golden, outputs_of(engine, golden.requests()))
    assert engine.stats().preemptions > 0


def test_with_prompts_found_in_the_prefix_cache(golden: _Golden) -> None:
    engine = golden.engine(prefix_caching=True)
    for _ in range(2):
        outputs = outputs_of(engine, golden.requests())
        _check(golden, outputs)
    assert outputs["5"].cached_tokens > 0
    assert engine.stats().cached_tokens > 0


def test_beside_sampled_requests(golden: _Golden) -> None:
    engine = golden.engine()
    sampled = [golden.request(index, temperature=1.5, top_p=0.9, seed=index) for index in range(len(_LENGTHS))]
    outputs = outputs_of(engine, [each for pair in zip(sampled, golden.requests(), strict=True) for each in pair])
    _check(golden, outputs)
    assert [outputs[f"{index}-sampled"].token_ids for index in range(len(_LENGTHS))] != golden.outputs


def test_going_on_from_tokens_that_an_engine_now_dead_had_generated(golden: _Golden) -> None:
    engine = golden.engine()
    begun = [
        msgspec.structs.replace(request, output_token_ids=output[: len(output) // 2])
        for request, output in zip(golden.requests(), golden.outputs, strict=True)
    ]
    _check(golden, outputs_of(engine, begun))


def test_all_of_that_at_once(any_golden: _Golden) -> None:
    """Arriving one by one, in chunks, preempted, then the longest twice more with what the prefix cache has kept."""
    engine = any_golden.engine(num_blocks=16, max_num_seqs=6, max_num_batched_tokens=20, prefix_caching=True)
    _check(any_golden, outputs_of(engine, arrivals=any_golden.requests()))
    assert engine.stats().preemptions > 0
    for _ in range(2):
        output = outputs_of(engine, [any_golden.request(5)])["5"]
        assert output.token_ids == any_golden.outputs[5]
    assert output.cached_tokens > 0
    assert any(len(set(output)) > len(output) // 3 for output in any_golden.outputs)


def test_the_output_head_alone_computes_the_same_logits(golden: _Golden) -> None:
    """Some heads do more than one product: scales, soft caps."""
    runner = golden.runner
    step = make_step([(0, 9)], deal_blocks([9], 8, runner.num_blocks), 8, [golden.prompts[2]])
    output = runner.execute(replace(step, hidden_rows=np.array([8])))
    torch.testing.assert_close(runner.logits(output.hidden), output.logits)
