"""One token through a model shows its attention, and gives some models away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig

from millrace.model_manager.engine.loading.attention_probe import probe_attention
from millrace.model_manager.engine.paged_attention import AttentionLayout
from millrace.model_manager.wire.errors import ModelUnsupported
from tests.model_manager.engine import random_checkpoints, tested_models
from tests.model_manager.engine.random_checkpoints import hooked

_CPU = torch.device("cpu")


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
    layout = probe_attention(hooked(make()), _CPU, 256)
    assert layout == wanted
    assert layout.num_layers == 3


def _skipped(attention: Any) -> None:
    attention.forward = lambda hidden_states, **_: (hidden_states, None)


def _narrower(attention: Any) -> None:
    attention.k_proj, attention.v_proj = (torch.nn.Linear(96, 32, bias=False) for _ in range(2))


def _asking(**options: Any) -> Callable[[Any], None]:
    def change(attention: Any) -> None:
        inner = attention.forward
        attention.forward = lambda **kwargs: inner(**kwargs, **options)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_skipped, r"LlamaForCausalLM is not served: its 3 layers attend as \[0, 2\]"),
        (_narrower, "with different sizes"),
        (_asking(position_bias=torch.zeros(1)), "asks attention for what it does not do: position_bias"),
        (_asking(indices=torch.zeros(1)), "LlamaAttention asks attention for what it does not do: indices"),
        (_asking(is_causal=False), "no causal order"),
    ],
)
def test_a_layer_that_attends_otherwise_is_noticed(change: Callable[[Any], None], said: str) -> None:
    model = hooked(random_checkpoints.llama_gqa())
    change(model.model.layers[1].self_attn)
    with pytest.raises(ModelUnsupported, match=said):
        probe_attention(model, _CPU, 256)


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    model = hooked(tested_models.gemma2())
    assert probe_attention(model, _CPU, max_model_len=24).windows == (None,) * 3
