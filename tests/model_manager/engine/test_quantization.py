"""Quantized weights and caches, from the setting to what is generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from model_manager.engine.engine import LLMEngine
from model_manager.engine.model_loader import load_model
from model_manager.engine.paged_attention import round_heads
from model_manager.engine.quantization import check_formats
from model_manager.engine.stopping import StopRules
from model_manager.wire.config import ModelConfig
from model_manager.wire.errors import ConfigError
from model_manager.wire.messages import Request
from model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine import random_checkpoints

_PROMPTS = [list(range(2, 2 + length)) for length in (1, 16, 37, 90)]
_NEW_TOKENS = 40


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"quantization": "fp8"}, "quantization='fp8': not on this cpu"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype='fp8': no CPU"),
    ],
)
def test_a_format_that_a_device_does_not_serve_is_refused_by_the_settings_name(
    fields: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_formats(ModelConfig.parse(fields), torch.device("cpu"))


@pytest.mark.parametrize("make", [random_checkpoints.llama_gqa, random_checkpoints.opt])
def test_an_int8_cache_answers_as_transformers_does_with_rounded_keys_and_values(tmp_path: Path, make: Any) -> None:
    model = random_checkpoints.write(tmp_path, make())
    exact = _greedy(model)
    rounding = _greedy_with_rounded_keys_and_values(model)
    assert rounding != exact
    assert _generate(tmp_path, kv_cache_dtype="int8") == rounding


def test_an_int8_cache_takes_three_tenths_of_the_memory(tmp_path: Path) -> None:
    random_checkpoints.write(tmp_path, random_checkpoints.llama_gqa())
    kept = load_model(_config(kv_cache_gib=0.001), tmp_path).info
    rounded = load_model(_config(kv_cache_gib=0.001, kv_cache_dtype="int8"), tmp_path).info
    assert (kept.kv_cache_dtype, rounded.kv_cache_dtype) == ("float32", "int8")
    assert rounded.num_blocks == pytest.approx(kept.num_blocks * 32 * 4 / (32 + 4), rel=0.02)


def _config(**settings: Any) -> ModelConfig:
    defaults: dict[str, Any] = {"model": "small", "kv_cache_gib": 0.01, "num_threads": 1, "device": "cpu"}
    return ModelConfig(**defaults | settings)


def _generate(folder: Path, **settings: Any) -> list[list[int]]:
    """Greedy outputs of the engine, all prompts at once, computed in chunks."""
    config = _config(max_num_seqs=8, max_num_batched_tokens=32, **settings)
    loaded = load_model(config, folder)
    engine = LLMEngine(loaded.runner, loaded.info, config, StopRules(frozenset(), None))
    for index, prompt in enumerate(_PROMPTS):
        params = SamplingParams(max_tokens=_NEW_TOKENS)
        engine.add(Request(request_id=str(index), prompt_token_ids=prompt, params=params))
    outputs: dict[str, list[int]] = {}
    while engine.has_work():
        outputs |= {output.request_id: output.token_ids for output in engine.step().outputs}
    return [outputs[str(index)] for index in range(len(_PROMPTS))]


def _greedy(model: Any) -> list[list[int]]:
    return [random_checkpoints.greedy(model, prompt, _NEW_TOKENS) for prompt in _PROMPTS]


def _greedy_with_rounded_keys_and_values(model: Any) -> list[list[int]]:
    exact = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attend(module: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        return exact(module, query, _rounded(key), _rounded(value), *rest, **options)

    ALL_ATTENTION_FUNCTIONS.register("rounding", attend)
    model.set_attn_implementation("rounding")
    return _greedy(model)


def _rounded(states: torch.Tensor) -> torch.Tensor:
    """[1, heads, T, dim] as an int8 cache gives it back."""
    steps, scales = round_heads(states[0].transpose(0, 1), torch.int8)
    return (steps * scales.unsqueeze(-1)).transpose(0, 1).unsqueeze(0)
