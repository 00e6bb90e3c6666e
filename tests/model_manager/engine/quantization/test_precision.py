"""Quantized weights and caches, from the setting to what is generated."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from millrace.model_manager.engine.cpu.matrix_ops import LANES, Format
from millrace.model_manager.engine.cpu.units import unit_of
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.engine.quantization.precision import INT4_GROUP, check_formats, round_linears
from millrace.model_manager.engine.quantization.rounded_linear import Int8Linear
from millrace.model_manager.engine.quantization.rounding import round_groups, round_rows
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig, Quantization
from millrace.model_manager.wire.errors import ConfigError
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.whole_engines import greedy_tokens, load_engine

_PROMPTS = [list(range(2, 2 + length)) for length in (1, 16, 37, 90)]
_NEW_TOKENS = 40


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"quantization": "fp8"},
            "quantization='fp8': takes a GPU of compute capability 8.9 or more, and this is a CPU",
        ),
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


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("make", [random_checkpoints.llama_gqa, random_checkpoints.opt])
def test_rounded_weights_answer_as_transformers_does_with_the_same_layers(
    tmp_path: Path, make: Any, quantization: Quantization
) -> None:
    """Nearly: where an input lies between two steps, the last bit of what precedes decides."""
    model = random_checkpoints.write(tmp_path, make())
    exact = _greedy(model)
    round_linears(model, quantization)
    if (
        quantization == "int8" and unit_of(Format.INT8, LANES) is not None
    ):  # the compiled step rounds the output layer too
        model.lm_head = Int8Linear(round_rows(model.lm_head.weight, torch.int8), model.lm_head.bias)
    rounding = _greedy(model)
    assert rounding != exact
    got = _generate(tmp_path, quantization=quantization)
    assert _agreement(got, rounding) > max(0.8, _agreement(exact, rounding))


@pytest.mark.parametrize(("quantization", "error"), [("int8", 0.03), ("int4", 0.01), ("fp8", 0.1)])
def test_a_rounded_model_is_the_model_of_what_its_weights_are_worth(quantization: Quantization, error: float) -> None:
    """Up to what rounding the layers' inputs adds; random weights would magnify that."""
    model: Any = LlamaForCausalLM.from_pretrained(resolve(EMBEDDED_MODEL), dtype=torch.float32)
    worth = copy.deepcopy(model)
    for layer in _inner_linears(worth):
        layer.weight.data = _worth(layer.weight, quantization)
    round_linears(model, quantization)
    assert not list(_inner_linears(model))
    tokens = torch.tensor([_PROMPTS[-1]])
    with torch.inference_mode():
        got, wanted = model(tokens).logits, worth(tokens).logits
    assert (got - wanted).norm() < error * wanted.norm()


def test_a_loaded_model_says_what_it_is_rounded_to(tmp_path: Path) -> None:
    random_checkpoints.write(tmp_path, random_checkpoints.llama_gqa())
    info = load_model(_config(quantization="int4", kv_cache_dtype="int8"), tmp_path).info
    assert (info.quantization, info.kv_cache_dtype) == ("int4", "int8")


def test_layers_that_int4_does_not_take_keep_their_dtype_and_the_log_says_how_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = random_checkpoints.llama_gqa()
    config.intermediate_size = 104
    random_checkpoints.write(tmp_path, config)
    load_model(_config(quantization="int4"), tmp_path)
    assert "9 linear layers keep their dtype: int4 does not take their sizes" in caplog.text


def _inner_linears(model: Any) -> Iterator[torch.nn.Linear]:
    """All but the output layer."""
    for module in model.modules():
        if type(module) is torch.nn.Linear and module is not model.lm_head:
            yield module


def _worth(weight: torch.Tensor, quantization: Quantization) -> torch.Tensor:
    if quantization == "int4":
        return round_groups(weight, INT4_GROUP).values()
    return round_rows(weight, torch.int8 if quantization == "int8" else torch.float8_e4m3fn).values()


def _config(**settings: Any) -> ModelConfig:
    defaults: dict[str, Any] = {"model": "small", "kv_cache_gib": 0.01, "num_threads": 1, "device": "cpu"}
    return ModelConfig(**defaults | settings)


def _generate(folder: Path, **settings: Any) -> list[list[int]]:
    """Greedy outputs of the engine, all prompts at once, computed in chunks."""
    config = _config(max_num_seqs=8, max_num_batched_tokens=32, **settings)
    return greedy_tokens(load_engine(folder, config), [(prompt, _NEW_TOKENS) for prompt in _PROMPTS])


def _greedy(model: Any) -> list[list[int]]:
    return [random_checkpoints.greedy(model, prompt, _NEW_TOKENS) for prompt in _PROMPTS]


def _agreement(outputs: list[list[int]], wanted: list[list[int]]) -> float:
    """The share of tokens before the first difference of each."""
    equal = [sum(itertools.accumulate(map(int.__eq__, *pair), min)) for pair in zip(outputs, wanted, strict=True)]
    return sum(equal) / (len(wanted) * _NEW_TOKENS)


def _greedy_with_rounded_keys_and_values(model: Any) -> list[list[int]]:
    exact = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attend(module: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        return exact(module, query, _rounded(key), _rounded(value), *rest, **options)

    ALL_ATTENTION_FUNCTIONS.register("rounding", attend)
    model.set_attn_implementation("rounding")
    return _greedy(model)


def _rounded(states: torch.Tensor) -> torch.Tensor:
    """[1, heads, T, dim] as an int8 cache gives it back."""
    return round_rows(states, torch.int8).values()
