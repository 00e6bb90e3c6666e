"""Finds the positions that transformers' own attention sees in each layer, from the masks that it builds.

A mask is a function of two positions. It is evaluated over the model's whole length, so that a window of 4,096
positions shows as one of 16 does. What a model says elsewhere (`is_causal`, the windows of its cache) has to agree:
transformers' answers would depend on how it is called. Knows no weights: outputs are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import DynamicCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..paged_attention import AttentionLayout
from ..torch.attention_hook import attending_as, connect
from .refusing import not_served

_IMPLEMENTATION = "millrace_noted"
_TOKENS = 4
_AT_ONCE = 2**22
_MARK = 7919
"""First number of a mask made by `_noted_mask`; the second is the window."""
_ALL, _OTHER = 0, -1
"""Values in place of a window: every earlier position, and anything else."""

Windows = tuple[int | None, ...]


@torch.inference_mode()
def own_windows(model: Any, device: torch.device, max_model_len: int) -> Windows:
    """Each layer's window, None where no sequence of `max_model_len` tokens outgrows it.

    Raises ModelUnsupported unless a layer sees what lies before it, all or a window, however transformers is called.
    """
    ALL_MASK_ATTENTION_FUNCTIONS.register(_IMPLEMENTATION, _noted_mask)
    ALL_ATTENTION_FUNCTIONS.register(_IMPLEMENTATION, _note)
    notes = _Notes()
    connect(model, notes)  # type: ignore[arg-type]
    with attending_as(model, _IMPLEMENTATION):
        try:
            model(input_ids=torch.zeros((1, _TOKENS), dtype=torch.long, device=device), use_cache=False)
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError) as error:
            raise not_served(model, f"its masks show nothing, for {type(error).__name__}: {error}") from error
    if _OTHER in notes.windows:
        raise not_served(model, "its attention is not causal: it sees other positions than those before a token")
    windows = tuple(window if 0 < window < max_model_len else None for window in notes.windows)
    _check_cache(model, windows, max_model_len)
    return windows


def check_windows(model: Any, layout: AttentionLayout, device: torch.device, max_model_len: int) -> None:
    """Raise ModelUnsupported unless attention is given the windows of transformers' masks."""
    windows = own_windows(model, device, max_model_len)
    if windows != layout.windows:
        raise not_served(model, f"transformers' masks leave windows {windows}, and attention is told {layout.windows}")


class _Notes:
    """Records windows in place of attention."""

    def __init__(self) -> None:
        self.windows: list[int] = []


def _note(
    module: Any, query: torch.Tensor, _key: torch.Tensor, value: torch.Tensor, mask: Any = None, **options: Any
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers that records the window and attends to nothing."""
    is_causal = options.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    module.paged.windows.append(_noted_window(mask) if is_causal else _OTHER)
    return query.new_zeros((query.shape[0], query.shape[2], query.shape[1], value.shape[3])), None


def _noted_window(mask: torch.Tensor | None) -> int:
    if mask is None:
        return _ALL
    mark, window = mask.flatten()[:2].tolist()
    return int(window) if mark == _MARK else _OTHER


def _noted_mask(*, config: Any, mask_function: Any = causal_mask_function, **_sizes: Any) -> torch.Tensor:
    """A mask builder of transformers that gives the window instead of a mask."""
    length = int(getattr(config.get_text_config(decoder=True), "max_position_embeddings", 0) or _TOKENS)
    try:
        window = _window_of(mask_function, max(length, _TOKENS))
    except (IndexError, RuntimeError):  # it indexes a tensor as long as the tokens
        window = _OTHER
    return torch.tensor([_MARK, window, 0, 0]).view(1, 1, 1, _TOKENS)


def _window_of(mask_function: Any, length: int) -> int:
    """The window, from what a few positions of a sequence see."""
    asked, first = torch.tensor([0, 1, length // 2, length - 1]).view(-1, 1), torch.zeros((), dtype=torch.long)

    def seen(behind: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(mask_function(first, first, asked, behind)).expand(len(asked), len(behind))

    window = sum(int(seen(behind)[-1].sum()) for behind in _positions(length))
    for behind in _positions(length):
        wanted = (behind <= asked) & (behind > asked - window)
        if not window or not torch.equal(seen(behind), wanted):
            return _OTHER
    return _ALL if window == length else window


def _positions(length: int) -> Iterator[torch.Tensor]:
    """All positions, some at a time: a config may say that there are billions."""
    for start in range(0, length, _AT_ONCE):
        yield torch.arange(start, min(start + _AT_ONCE, length))


def _check_cache(model: Any, windows: Windows, max_model_len: int) -> None:
    """Raise ModelUnsupported if transformers' cache forgets more than its masks hide: its generation would differ from
    its forward pass.
    """
    try:
        kept = [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=model.config).layers]
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise not_served(model, f"transformers makes no cache for it: {error}") from error
    for index, (window, cached) in enumerate(zip(windows, kept, strict=False)):
        if cached is not None and cached < min(window or max_model_len, max_model_len):
            sees = f"{window} positions" if window else "all positions"
            reason = f"layer {index} of it sees {sees}, and transformers' cache keeps {cached} of them"
            raise not_served(model, f"{reason}: its answers would depend on how a prompt is cut")
