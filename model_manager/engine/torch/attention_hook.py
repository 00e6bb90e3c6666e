"""Sets the attention of transformers' model code: by a hook over the paged KV cache, or for a while another one.

Computes nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ...wire.errors import ModelUnsupported
from ..paged_attention import AttentionOptions, PagedAttention

IMPLEMENTATION = "millrace_paged"
"""The name under which transformers' models find `attend_paged`."""
_WITHOUT_EFFECT = frozenset(
    {"dropout", "is_causal", "position_ids", "cache_position", "output_attentions", "output_router_logits", "use_cache"}
)
"""Options that models pass and that change nothing here: there is no training, and positions are in the tables."""


def attend_paged(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers: tensors [1, heads, T, dim] in, [1, T, heads, dim] out.

    Raises ModelUnsupported for an unknown mask or option; a first step shows whether a model has one.
    """
    if attention_mask is not None or others.get("is_causal") is False or others.keys() - _WITHOUT_EFFECT:
        _refuse_options(module, attention_mask, others)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    options = AttentionOptions(scale, sliding_window or None, softcap, s_aux)
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    width = v.shape[-1]
    if width < k.shape[-1]:  # latent attention: a page holds keys and values in one width
        v = torch.nn.functional.pad(v, (0, k.shape[-1] - width))
    return module.paged.attend(module.layer_idx, q, k, v, options)[..., :width].unsqueeze(0), None


def _refuse_options(module: Any, mask: torch.Tensor | None, others: dict[str, Any]) -> None:
    unknown = [name for name in others.keys() - _WITHOUT_EFFECT if others[name] is not None]
    unknown += ["a mask of its own"] * (mask is not None) + ["no causal order"] * (others.get("is_causal") is False)
    if unknown:
        raise ModelUnsupported(f"{type(module).__name__} asks attention for what it does not do: {', '.join(unknown)}")


def connect(model: torch.nn.Module, paged: PagedAttention) -> None:
    """Connect the attention layers of `model` that know their number to `paged`, by `attend_paged`."""
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            module.paged = paged  # type: ignore[assignment]


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers; no mask is registered, so that none is built."""
    ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, attend_paged)


def own_implementation(model: Any) -> str:
    """The attention that transformers uses for `model` by default."""
    name: str = model.get_correct_attn_implementation(None)
    return name


@contextmanager
def attending_as(model: Any, implementation: str) -> Iterator[None]:
    """Within, `model` uses the attention of this name in transformers; afterwards its former one.

    Not by `set_attn_implementation`: it leaves a model as it is whose code does not look the name up as it expects.
    """
    before = model.config._attn_implementation
    model.config._attn_implementation = implementation  # sets its sub-configs, too
    try:
        yield
    finally:
        model.config._attn_implementation = before
