"""A model is served when its packed answers are its own, and refused when they are not."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

from millrace.model_manager.engine.loading import architectures, compiled_loader, self_check
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelUnsupported
from tests.model_manager.engine import random_checkpoints, tested_models


@pytest.fixture(autouse=True)
def _nothing_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor known to the compiled step, which does without the code that is checked."""
    monkeypatch.setattr(compiled_loader, "plan_decoder", lambda _architecture, _config: None)
    monkeypatch.setattr(architectures, "TESTED", ())


def _load(folder: Path, **settings: Any) -> None:
    load_model(ModelConfig(model="small", kv_cache_gib=0.01, num_threads=1, **settings), folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", [random_checkpoints.llama_gqa, tested_models.gemma2, tested_models.gpt_oss])
def test_what_answers_the_same_in_a_batch_is_served(
    tmp_path: Path, make: Any, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    random_checkpoints.write(tmp_path, make())
    with caplog.at_level(logging.WARNING):
        _load(tmp_path, dtype=dtype)
    assert "is not among the tested architectures" in caplog.text


def _by_place(rotary: Any) -> Any:
    """Ignores the positions that it is given."""

    def forward(self: Any, x: torch.Tensor, **_positions: torch.Tensor) -> Any:
        return rotary(self, x, position_ids=torch.arange(x.shape[1]).unsqueeze(0))

    return forward


def _with_neighbour(feed_forward: Any) -> Any:
    """Mixes what shares a batch."""
    return lambda self, x: feed_forward(self, x) + x.roll(1, dims=1)


@pytest.mark.parametrize(
    ("module", "change"),
    [(modeling_llama.LlamaRotaryEmbedding, _by_place), (modeling_llama.LlamaMLP, _with_neighbour)],
)
def test_code_that_answers_otherwise_in_a_batch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, change: Any
) -> None:
    random_checkpoints.write(tmp_path, random_checkpoints.llama_gqa())
    monkeypatch.setattr(module, "forward", change(module.forward))
    with pytest.raises(ModelUnsupported, match="LlamaForCausalLM is not served: in a batch it answers otherwise than"):
        _load(tmp_path)


@pytest.mark.parametrize("settings", [{"kv_cache_dtype": "int8"}, {"quantization": "int8"}, {"dtype": "bfloat16"}])
@pytest.mark.parametrize("make", [tested_models.granite_moe, tested_models.gpt2, random_checkpoints.opt])
def test_rounding_is_not_taken_for_other_answers(tmp_path: Path, make: Any, settings: dict[str, str]) -> None:
    random_checkpoints.write(tmp_path, make())
    _load(tmp_path, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_model_len": 2},
        {"max_model_len": 9, "block_size": 8, "max_num_seqs": 1},
        {"max_model_len": 16, "max_num_seqs": 1},
        {"max_num_seqs": 1, "max_num_batched_tokens": 1},
    ],
)
def test_the_smallest_engines_are_checked(tmp_path: Path, settings: dict[str, int]) -> None:
    random_checkpoints.write(tmp_path, tested_models.olmo())
    _load(tmp_path, **settings)


@pytest.mark.parametrize(("max_tokens", "max_seqs"), [(1, 1), (2, 2), (7, 6), (23, 2), (512, 64)])
@pytest.mark.parametrize(("positions", "blocks"), [(2, 1), (9, 2), (256, 2), (256, 100)])
def test_no_step_of_the_check_is_larger_than_the_engines(
    max_tokens: int, max_seqs: int, positions: int, blocks: int
) -> None:
    runner: Any = SimpleNamespace(max_model_len=positions, num_blocks=blocks, block_size=8)
    lengths = self_check._lengths(runner, max_tokens, max_seqs)
    cuts = list(self_check._cuts(lengths, min(10, max_tokens)))
    assert all(sum(end - start for start, end in spans) <= max_tokens for spans in cuts)
    assert all(end > start for spans in cuts for start, end in spans)
    assert cuts[-1][0][1] == lengths[0]
    assert len(lengths) <= max_seqs
    assert len(lengths) * -(-lengths[0] // 8) <= blocks
    assert max(lengths) <= positions
