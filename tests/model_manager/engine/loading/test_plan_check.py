"""The compiled step stands in for transformers' code where it computes the same, and nowhere else."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, PreTrainedConfig

from millrace.model_manager.engine.cpu.compiled_runner import CompiledRunner
from millrace.model_manager.engine.cpu.decoder_plan import DecoderPlan, Rope, plan_decoder
from millrace.model_manager.engine.cpu.matrix_ops import LANES, Format
from millrace.model_manager.engine.cpu.units import unit_of
from millrace.model_manager.engine.loading import architectures, compiled_loader, plan_check
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.engine.loading.plan_check import narrowed
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelUnsupported
from tests.model_manager.engine import random_checkpoints, tested_models
from tests.model_manager.engine.random_checkpoints import common

pytestmark = pytest.mark.skipif(unit_of(Format.FLOAT32, LANES) is None, reason="the processor lacks AVX2")

_SIZES: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}


def _load(folder: Path, **settings: Any) -> Any:
    return load_model(ModelConfig(model="small", kv_cache_gib=0.01, num_threads=1, **settings), folder).runner


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}, {"max_model_len": 3}])
@pytest.mark.parametrize(
    "make",
    [
        random_checkpoints.llama_one_kv_head,
        random_checkpoints.qwen2_sliding_window,
        random_checkpoints.opt,
        tested_models.llama_dynamic_rope,
        tested_models.gemma,
        tested_models.mistral,
        tested_models.qwen3,
        tested_models.starcoder2,
    ],
)
def test_what_computes_the_same_is_compiled(tmp_path: Path, make: Any, settings: dict[str, Any]) -> None:
    random_checkpoints.write(tmp_path, make())
    assert isinstance(_load(tmp_path, **settings), CompiledRunner)


def _without_scaled_rope(plan: DecoderPlan) -> DecoderPlan:
    """Differs from the model's own in the lowest frequencies alone, which turn far positions."""
    assert plan.rope is not None
    dim = 2 * len(plan.rope.inverse_frequencies)
    return replace(plan, rope=Rope(10000.0 ** -(torch.arange(0, dim, 2) / dim), 1.0))


def _with_a_window(plan: DecoderPlan) -> DecoderPlan:
    """That none of the check's 24 tokens is behind."""
    layers = tuple(replace(layer, options=replace(layer.options, window=200)) for layer in plan.layers)
    return replace(plan, layers=layers, layout=replace(plan.layout, windows=(200,) * len(layers)))


def _with_other_scale(plan: DecoderPlan) -> DecoderPlan:
    layers = tuple(replace(layer, options=replace(layer.options, scale=0.2)) for layer in plan.layers)
    return replace(plan, layers=layers)


def _with_other_epsilon(plan: DecoderPlan) -> DecoderPlan:
    return replace(plan, norm=replace(plan.norm, epsilon=0.1))


@pytest.mark.parametrize("change", [_without_scaled_rope, _with_a_window, _with_other_scale, _with_other_epsilon])
def test_a_plan_that_computes_otherwise_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: Any
) -> None:
    def planned(architecture: str, config: Any) -> DecoderPlan:
        plan = plan_decoder(architecture, config)
        assert plan is not None
        return change(plan)  # type: ignore[no-any-return]

    for module in (compiled_loader, plan_check):
        monkeypatch.setattr(module, "plan_decoder", planned)
    random_checkpoints.write(tmp_path, random_checkpoints.llama_one_kv_head())
    with caplog.at_level(logging.WARNING):
        assert not isinstance(_load(tmp_path), CompiledRunner)
    assert "LlamaForCausalLM runs through transformers' code: compiled, " in caplog.text


@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
def test_a_llama_with_kinds_of_layers_has_no_window_unless_transformers_gives_it_one(tmp_path: Path, kind: str) -> None:
    """Its code does not read them; caches do, so that windows are refused by name."""
    fields = {"layer_types": [kind, "full_attention", kind], "sliding_window": 16}
    config = LlamaConfig(**_SIZES, **common() | fields)
    random_checkpoints.write(tmp_path, config)
    if kind == "full_attention":
        assert isinstance(_load(tmp_path), CompiledRunner)
        return
    with pytest.raises(ModelUnsupported, match=r"layer 0 of it sees all positions, and .* keeps 16") as raised:
        _load(tmp_path)
    assert "layer_types=['sliding_attention', 'full_attention'" in str(raised.value)
    assert "sliding_window=16" in str(raised.value)


@pytest.mark.parametrize("max_loras", [0, 1])
@pytest.mark.parametrize(
    ("make", "fields", "named"),
    [
        (random_checkpoints.llama_gqa, {"is_causal": False}, "is_causal=false"),
        (random_checkpoints.qwen2, {"is_causal": False}, "is_causal=false"),
        (tested_models.gemma, {"use_bidirectional_attention": True}, "use_bidirectional_attention=true"),
        (tested_models.gemma3, {"use_bidirectional_attention": True}, "use_bidirectional_attention=true"),
    ],
)
def test_attention_in_both_directions_is_refused_also_where_its_field_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, fields: dict[str, bool], named: str, max_loras: int
) -> None:
    """The checks refuse it, for a model that would be compiled and for one that would not."""
    monkeypatch.setattr(architectures, "_seeing_ahead", lambda _config: None)
    config = make()
    for name, value in fields.items():
        setattr(config, name, value)
    random_checkpoints.write(tmp_path, config)
    with pytest.raises(ModelUnsupported, match=f"ForCausalLM is not served: .*causal.*; its config has .*{named}"):
        _load(tmp_path, max_loras=max_loras)


def test_a_field_that_changes_nothing_is_no_reason_to_refuse(tmp_path: Path) -> None:
    fields = {"use_flux_capacitor": True, "alibi_slopes": [1, 2], "logit_scale": 3.0}
    config = LlamaConfig(**_SIZES, **common() | fields)
    random_checkpoints.write(tmp_path, config)
    assert isinstance(_load(tmp_path), CompiledRunner)


def test_a_model_whose_layers_differ_is_refused_by_name(tmp_path: Path) -> None:
    random_checkpoints.write(tmp_path, LlamaConfig(**_SIZES, **common()))
    file = tmp_path / "config.json"
    differing = {"per_layer_config": {"1": {"intermediate_size": 48}}}
    file.write_text(json.dumps(json.loads(file.read_text()) | differing))
    with pytest.raises(ModelUnsupported, match=r"its layers differ .* in size \(per_layer_config"):
        _load(tmp_path)


def _fields(config: PreTrainedConfig, *names: str) -> list[int]:
    return [getattr(config, name) for name in names]


def test_a_small_instance_keeps_layers_groups_and_heads() -> None:
    large = LlamaConfig(hidden_size=8192, num_attention_heads=64, num_key_value_heads=8, num_hidden_layers=80)
    small = narrowed(large)
    assert _fields(small, "hidden_size", "num_attention_heads", "num_key_value_heads") == [512, 4, 2]
    assert _fields(small, "head_dim", "num_hidden_layers", "max_position_embeddings") == [128, 80, 2048]
    assert _fields(small, "intermediate_size", "vocab_size") == [128, 256]
    assert _fields(large, "hidden_size", "vocab_size", "eos_token_id") == [8192, 32000, 2]


_RELATED = [(6, 6, (2, 2)), (4, 1, (2, 1)), (14, 2, (4, 2)), (1, 1, (1, 1))]


@pytest.mark.parametrize(("heads", "kv_heads", "few"), _RELATED)
def test_a_small_instance_has_heads_in_the_same_relation(heads: int, kv_heads: int, few: tuple[int, int]) -> None:
    small = narrowed(LlamaConfig(hidden_size=heads * 64, num_attention_heads=heads, num_key_value_heads=kv_heads))
    assert tuple(_fields(small, "num_attention_heads", "num_key_value_heads")) == few
    assert small.hidden_size == few[0] * 64


def test_a_small_instance_leaves_the_random_numbers_of_others_alone(tmp_path: Path) -> None:
    random_checkpoints.write(tmp_path, random_checkpoints.qwen2())
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    _load(tmp_path)
    assert torch.equal(torch.rand(3), wanted)
