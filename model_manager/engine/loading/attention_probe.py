"""Finds what a loaded model needs of attention, by sending one token through it.

Configs name the same sizes in a dozen ways and leave others out; a model's calls are certain. Knows no architecture.
"""

from __future__ import annotations

from typing import Any

import torch

from ...wire.errors import ModelUnsupported
from ..interface import StepInput
from ..paged_attention import AttentionLayout, AttentionOptions
from ..torch.attention_hook import connect
from .refusing import not_served


@torch.inference_mode()
def probe_attention(model: Any, device: torch.device, max_model_len: int) -> AttentionLayout:
    """Run one token; raises ModelUnsupported unless every layer attends once, in order, with the same sizes.

    Windows that no sequence of `max_model_len` tokens outgrows are none.
    """
    probe = _Probe()
    connect(model, probe)
    token = torch.zeros((1, 1), dtype=torch.long, device=device)
    rows = torch.zeros(1, dtype=torch.long, device=device)
    try:
        output = model(input_ids=token, position_ids=token, use_cache=False, logits_to_keep=rows)
    except ModelUnsupported as error:
        raise not_served(model, str(error)) from None
    except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError) as error:
        raise not_served(model, f"a first token through it ended in {type(error).__name__}: {error}") from error
    return probe.layout(model, int(output.logits.shape[-1]), max_model_len)


class _Probe:
    """A PagedAttention that records its calls and attends to nothing."""

    def __init__(self) -> None:
        self._layers: list[int] = []
        self._sizes: set[tuple[int, int, int]] = set()
        self._windows: list[int | None] = []

    def begin(self, step: StepInput) -> None:
        pass

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, _value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        self._layers.append(layer)
        self._sizes.add((query.shape[1], key.shape[1], query.shape[2]))
        self._windows.append(options.window)
        return torch.zeros_like(query)

    def layout(self, model: Any, vocab_size: int, max_model_len: int) -> AttentionLayout:
        """The recorded layout; raises ModelUnsupported if a KV cache cannot have this shape."""
        text = model.config.get_text_config(decoder=True)
        wanted = list(range(text.num_hidden_layers))
        if self._layers != wanted:
            raise not_served(model, f"its {len(wanted)} layers attend as {self._layers}, not once each and in order")
        if len(self._sizes) > 1:
            raise not_served(model, f"its layers attend with different sizes, {sorted(self._sizes)}")
        windows = tuple(window if window and window < max_model_len else None for window in self._windows)
        heads, kv_heads, dim = self._sizes.pop()
        return AttentionLayout(heads, kv_heads, dim, windows, vocab_size)
