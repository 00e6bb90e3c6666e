"""What one token through a model shows of its attention, and which models it gives away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from millrace.model_manager.engine.loading.attention_probe import probe_attention
from millrace.model_manager.engine.paged_attention import AttentionLayout
from millrace.model_manager.engine.torch import falcon
from millrace.model_manager.engine.torch.attention_hook import IMPLEMENTATION, register
from millrace.model_manager.wire.errors import ModelUnsupported
from tests.model_manager.engine import random_checkpoints, tested_models

_CPU = torch.device("cpu")


def _model(config: PreTrainedConfig) -> Any:
    register()
    falcon.register()
    classes: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    config._attn_implementation = IMPLEMENTATION
    return classes[type(config)](config).eval()


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (random_checkpoints.llama_gqa, AttentionLayout(6, 2, 32, (None,) * 3, 211)),
        (tested_models.gpt2, AttentionLayout(4, 4, 16, (None,) * 3, 211)),
        (tested_models.falcon_multi_query, AttentionLayout(4, 1, 16, (None,) * 3, 211)),
        (tested_models.falcon_new_decoder, AttentionLayout(4, 2, 16, (None,) * 3, 211)),
        (tested_models.gpt_oss, AttentionLayout(4, 2, 16, (24, None, 24), 211)),
        (tested_models.gemma3, AttentionLayout(4, 2, 32, (24, 24, None), 211)),
        (tested_models.mistral, AttentionLayout(4, 2, 16, (24,) * 3, 211)),
        (tested_models.deepseek_v3, AttentionLayout(4, 4, 24, (None,) * 3, 211)),
    ],
)
def test_the_layout_is_what_the_model_asks_for(make: Callable[[], PreTrainedConfig], wanted: AttentionLayout) -> None:
    layout = probe_attention(_model(make()), _CPU, 256)
    assert layout == wanted
    assert layout.num_layers == 3


def test_a_layer_that_does_not_attend_is_noticed() -> None:
    model = _model(random_checkpoints.llama_gqa())
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(ModelUnsupported, match=r"LlamaForCausalLM is not served: its 3 layers attend as \[0, 2\]"):
        probe_attention(model, _CPU, 256)


def test_layers_of_different_sizes_are_noticed() -> None:
    model = _model(random_checkpoints.llama_gqa())
    layer = model.model.layers[1].self_attn
    layer.k_proj, layer.v_proj = (torch.nn.Linear(96, 32, bias=False) for _ in range(2))
    with pytest.raises(ModelUnsupported, match="with different sizes"):
        probe_attention(model, _CPU, 256)


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    model = _model(tested_models.gemma2())
    assert probe_attention(model, _CPU, max_model_len=24).windows == (None,) * 3


@pytest.mark.parametrize("option", ["position_bias", "indices"])
def test_an_option_that_attention_does_not_know_is_noticed(option: str) -> None:
    model = _model(random_checkpoints.llama_gqa())
    layer = model.model.layers[1].self_attn
    inner = layer.forward
    layer.forward = lambda **kwargs: inner(**kwargs, **{option: torch.zeros(1)})
    with pytest.raises(ModelUnsupported, match=f"LlamaAttention asks attention for what it does not do: {option}"):
        probe_attention(model, _CPU, 256)


def test_attention_in_both_directions_is_noticed() -> None:
    model = _model(random_checkpoints.llama_gqa())
    layer = model.model.layers[0].self_attn
    inner = layer.forward
    layer.forward = lambda **kwargs: inner(**kwargs, is_causal=False)
    with pytest.raises(ModelUnsupported, match="no causal order"):
        probe_attention(model, _CPU, 256)
