"""Positions that a layer sees by transformers' masks, modules and caches, and cases where these disagree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
)
from transformers.masking_utils import create_causal_mask
from transformers.models.llama import modeling_llama

from millrace.model_manager.engine.loading import own_masks
from millrace.model_manager.engine.loading.attention_probe import probe_attention
from millrace.model_manager.engine.loading.own_masks import check_windows, own_windows
from millrace.model_manager.engine.torch.attention_hook import IMPLEMENTATION
from millrace.model_manager.wire.errors import ModelUnsupported
from tests.model_manager.engine import random_checkpoints, tested_models
from tests.model_manager.engine.random_checkpoints import common, hooked
from tests.model_manager.engine.tested_models import MODELS

_CPU = torch.device("cpu")
_LONG: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
_LONG |= common() | {"max_position_embeddings": 32768}
_WINDOWED: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
_SERVED = [case for case in MODELS if "images" not in case.make.__name__]


@pytest.mark.parametrize("case", _SERVED, ids=lambda case: case.make.__name__)
def test_what_masks_leave_is_what_attention_is_told(case: tested_models.ModelCase) -> None:
    model = hooked(case.make())
    check_windows(model, probe_attention(model, _CPU, 256), _CPU, 256)
    assert model.config._attn_implementation == IMPLEMENTATION


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: MistralConfig(**_LONG, sliding_window=4096), (4096,) * 3),
        (lambda: MistralConfig(**_LONG, sliding_window=40960), (None,) * 3),
        (tested_models.gemma3, (24, 24, None)),
        (tested_models.gpt_oss, (24, None, 24)),
        (random_checkpoints.opt, (None,) * 3),
        (tested_models.falcon_new_decoder, (None,) * 3),
    ],
)
def test_windows_of_any_length_are_seen(make: Callable[[], PreTrainedConfig], wanted: tuple[int | None, ...]) -> None:
    assert own_windows(hooked(make()), _CPU, 32768) == wanted


@pytest.mark.parametrize(
    "make",
    [
        lambda: LlamaConfig(**_LONG | {"is_causal": False}),
        lambda: Qwen2Config(**_LONG | {"is_causal": False}),
        lambda: Qwen2Config(**_LONG | _WINDOWED | {"is_causal": False}),
        lambda: GemmaConfig(**_LONG, head_dim=16, use_bidirectional_attention=True),
        lambda: Gemma3TextConfig(**_LONG, head_dim=16, use_bidirectional_attention=True),
    ],
    ids=["llama", "qwen2", "qwen2-windows", "gemma", "gemma3"],
)
def test_attention_in_both_directions_is_seen_by_masks_and_modules(make: Callable[[], PreTrainedConfig]) -> None:
    with pytest.raises(ModelUnsupported, match="its attention is not causal") as raised:
        own_windows(hooked(make()), _CPU, 256)
    assert any(name in str(raised.value) for name in ("is_causal=false", "use_bidirectional_attention=true"))


@pytest.mark.parametrize("at_once", [1, 7])
def test_windows_are_the_same_however_few_positions_are_looked_at_together(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = random_checkpoints.qwen2_sliding_window()
    wanted = own_windows(hooked(config), _CPU, 256)
    monkeypatch.setattr(own_masks, "_AT_ONCE", at_once)
    assert own_windows(hooked(config), _CPU, 256) == wanted != (None,) * 3
    assert max(map(len, own_masks._positions(100))) == at_once
    assert [*chain(*map(torch.Tensor.tolist, own_masks._positions(100)))] == [*range(100)]


def test_a_window_that_attention_is_not_told_of_is_noticed() -> None:
    model = hooked(tested_models.gemma2())
    model.model.layers[0].self_attn.sliding_window = None
    layout = probe_attention(model, _CPU, 256)
    with pytest.raises(ModelUnsupported, match=r"windows \(24, None, 24\), and attention is told \(None, None, 24\)"):
        check_windows(model, layout, _CPU, 256)
    model.model.layers[0].self_attn.sliding_window = None
    check_windows(model, probe_attention(model, _CPU, 24), _CPU, 24)


@pytest.mark.parametrize("window", [16, 4096])
def test_a_cache_that_forgets_what_masks_leave_is_noticed(window: int) -> None:
    """Llama's code knows no windows; transformers' caches do, of any config."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    model = hooked(LlamaConfig(**_LONG | {"layer_types": kinds, "sliding_window": window}))
    with pytest.raises(ModelUnsupported, match=f"sees all positions, and .* cache keeps {window}") as raised:
        own_windows(model, _CPU, 32768)
    assert "layer_types=['sliding_attention'" in str(raised.value)
    assert f"sliding_window={window}" in str(raised.value)
    assert own_windows(model, _CPU, window) == (None,) * 3


def test_masks_of_a_form_of_their_own_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hooked(random_checkpoints.llama_gqa())

    def every_other(**arguments: Any) -> Any:
        return create_causal_mask(**arguments, and_mask_function=lambda _b, _h, q, kv: (q - kv) % 2 == 0)

    monkeypatch.setattr(modeling_llama, "create_causal_mask", every_other)
    with pytest.raises(ModelUnsupported, match="its attention is not causal"):
        own_windows(model, _CPU, 256)
