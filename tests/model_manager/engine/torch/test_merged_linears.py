"""Projections of one input become one product, which gives what they gave and takes no more memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig

from millrace.model_manager.engine.torch.merged_linears import SharedLinear, merge_linears
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.tested_models import gemma2, gpt2, mixtral, olmo2, qwen3

PROMPT = list(range(5, 30))


@pytest.mark.parametrize(
    ("make", "merged"),
    [
        (random_checkpoints.llama_gqa, 5),
        (random_checkpoints.llama_one_kv_head, 5),
        (random_checkpoints.qwen2, 5),
        (qwen3, 5),
        (gemma2, 5),
        (olmo2, 5),
        (mixtral, 3),
        (random_checkpoints.opt, 3),
        (gpt2, 0),
    ],
)
def test_a_merged_model_generates_what_it_generated(
    tmp_path: Path, make: Callable[[], PreTrainedConfig], merged: int
) -> None:
    model: Any = random_checkpoints.write(tmp_path, make())
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        logits, tokens = model(ids).logits, random_checkpoints.greedy(model, PROMPT, 20)
    assert merge_linears(model) == merged * 3
    with torch.inference_mode():
        torch.testing.assert_close(model(ids).logits, logits, atol=1e-4, rtol=1e-4)
    assert random_checkpoints.greedy(model, PROMPT, 20) == tokens


class _Attention(nn.Module):
    def __init__(self, biases: tuple[bool, bool, bool]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 4, bias=bias) for bias in biases)


@pytest.mark.parametrize(("biases", "merged"), [((True,) * 3, 3), ((False,) * 3, 3), ((True, False, True), 0)])
def test_layers_are_merged_if_all_or_none_have_a_bias(biases: tuple[bool, bool, bool], merged: int) -> None:
    model = _Attention(biases)
    x = torch.randn(3, 8)
    wanted = [layer(x) for layer in (model.q_proj, model.k_proj, model.v_proj)]
    assert merge_linears(model) == merged
    assert isinstance(model.q_proj, SharedLinear) == bool(merged)
    for layer, each in zip((model.v_proj, model.q_proj, model.k_proj), (wanted[2], *wanted[:2]), strict=True):
        torch.testing.assert_close(layer(x), each)


def test_layers_of_other_kinds_stay_what_they_are() -> None:
    """As those that are quantized, or take adapters."""
    model = _Attention((True, True, True))
    model.k_proj = nn.Sequential(nn.Linear(8, 4))  # type: ignore[assignment]
    assert merge_linears(model) == 0


def test_no_weight_is_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a module's layers have been merged their own weights are gone, before the next module's are joined."""
    model = nn.Sequential(*(_Attention((False, False, False)) for _ in range(3)))
    former = [weakref.ref(part.get_submodule(name).weight) for part in model for name in ("q_proj", "k_proj", "v_proj")]
    left: list[int] = []

    def note() -> None:
        gc.collect()
        left.append(sum(weight() is not None for weight in former))

    monkeypatch.setattr("millrace.model_manager.engine.torch.merged_linears._give_back", note)
    merge_linears(model)
    assert left == [6, 3, 0]
