"""RMS norms, rotary embeddings and gated activations of a model as one kernel each: transformers computes each of them
in half a dozen, which on a GPU take as long as the matrix products between them.

Knows no architecture. What has the form of one of these is tried on a few rows, and replaced only if its kernel answers
as it does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import layer_kernels
from .triton_attention import power_of_two

_ROWS = 5
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""A few roundings of the format: kernels round once, at their end."""
_NORM_ELEMENTS = 2048
_GATE_BLOCK = 1024
_ROPE = "apply_rotary_pos_emb"
"""transformers' name for the function in the modules that have rotary embedding."""


@torch.inference_mode()
def fuse_layers(model: torch.nn.Module) -> dict[str, int]:
    """Replace in `model`, which lies where its kernels run, whatever a kernel computes; how many of each."""
    counts = {"norms": 0, "gates": 0, "rotations": 0}
    for module in model.modules():
        counts["norms"] += _fuse_norm(module)
        counts["gates"] += _fuse_gate(module)
    for name, heads in _rotating(model):
        counts["rotations"] += _fuse_rotation(name, heads, next(model.parameters()))
    return counts


def _fuse_norm(module: torch.nn.Module) -> bool:
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if not type(module).__name__.endswith("RMSNorm") or epsilon is None or not isinstance(weight, torch.Tensor):
        return False
    if weight.ndim != 1 or weight.dtype not in _TOLERANCE:
        return False
    rows = 3 * _random(weight, _ROWS, weight.shape[0])
    for plus_one in (False, True):  # Gemma's weights are what exceeds 1
        fused = functools.partial(normed, weight, float(epsilon), plus_one)
        if _agree(_answer(module, rows), fused(rows)):
            module.forward = fused
            return True
    return False


def normed(weight: torch.Tensor, epsilon: float, plus_one: bool, states: torch.Tensor) -> torch.Tensor:
    """The RMS norm of each row of [..., dim], times `weight` [dim]."""
    dim, inner = states.shape[-1], 1
    if states.ndim == 4 and len(states) == 1 and states.stride(3) == 1:  # heads, which may lie in a wider product
        inner, outer_stride, inner_stride = states.shape[2], states.stride(1), states.stride(2)
        rows = states
    else:
        rows = _together(states.reshape(-1, dim))
        outer_stride, inner_stride = rows.stride(0), 0
    output = torch.empty(states.shape, dtype=states.dtype, device=states.device)
    num_rows, padded = states.numel() // dim, power_of_two(dim)
    at_once = max(1, _NORM_ELEMENTS // padded)
    layer_kernels.norm[(-(-num_rows // at_once),)](
        rows,
        weight,
        output,
        num_rows,
        outer_stride,
        inner_stride,
        epsilon,
        INNER=inner,
        DIM=dim,
        DIM_PADDED=padded,
        ROWS=at_once,
        PLUS_ONE=plus_one,
    )
    return output


def _fuse_gate(module: Any) -> bool:
    """A feed-forward part whose down projection reads activation(gate) x up."""
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(isinstance(part, torch.nn.Linear) for part in parts) or not hasattr(module, "act_fn"):
        return False
    if parts[0].weight.dtype not in _TOLERANCE:  # type: ignore[union-attr]
        return False
    rows = _random(parts[0].weight, 1, _ROWS, module.gate_proj.in_features)  # type: ignore[union-attr]
    wanted = _answer(module, rows)
    for gelu in (False, True):
        fused = functools.partial(_feed_forward, module, gelu)
        if _agree(wanted, fused(rows)):
            module.forward = fused
            return True
    return False


def _feed_forward(module: Any, gelu: bool, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = module.down_proj(gated(module.gate_proj(x), module.up_proj(x), gelu))
    return result


def gated(gates: torch.Tensor, values: torch.Tensor, gelu: bool) -> torch.Tensor:
    """activation(gates) x values of [..., dim], by SiLU or by GELU's tanh approximation."""
    dim = gates.shape[-1]
    output = torch.empty(gates.shape, dtype=gates.dtype, device=gates.device)
    gates, values = _together(gates.reshape(-1, dim)), _together(values.reshape(-1, dim))
    layer_kernels.gate[(len(gates), -(-dim // _GATE_BLOCK))](
        gates, values, output, gates.stride(0), values.stride(0), DIM=dim, BLOCK=_GATE_BLOCK, GELU=gelu
    )
    return output


def _rotating(model: torch.nn.Module) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Modules of Python whose rotary embedding `model` uses, each once, with query heads, KV heads, head dimension."""
    config: Any = model.config
    config = config.get_text_config()
    found = {type(module).__module__ for module in model.modules() if hasattr(module, "layer_idx")}
    heads, dim = config.num_attention_heads, getattr(config, "head_dim", None)
    sizes = (heads, getattr(config, "num_key_value_heads", heads), dim or config.hidden_size // heads)
    yield from ((name, sizes) for name in found if hasattr(sys.modules[name], _ROPE))


def _fuse_rotation(name: str, sizes: tuple[int, int, int], like: torch.Tensor) -> bool:
    """Replace the function that a module of transformers rotates with, where it turns halves of whole heads."""
    module = sys.modules[name]
    own = getattr(module, _ROPE)
    if isinstance(own, _Rotation):
        return True
    heads, kv_heads, dim = sizes
    if dim % 2 or like.dtype not in _TOLERANCE:
        return False
    query, key = (_random(like, 1, _ROWS, count, dim).transpose(1, 2) for count in (heads, kv_heads))
    angles = _random(like, 1, _ROWS, dim // 2).float().repeat(1, 1, 2)
    given = (query, key, angles.cos().to(like.dtype), angles.sin().to(like.dtype))
    wanted = _answer(own, *given)
    if not isinstance(wanted, tuple) or not all(map(_agree, wanted, rotated(*given))):
        return False
    setattr(module, _ROPE, _Rotation(own))
    return True


class _Rotation:
    """In the place of transformers' function, for whatever model and device of its module call it."""

    def __init__(self, own: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._own = own

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *more: Any, **others: Any
    ) -> Any:
        known = not more and not others and q.ndim == 4 and len(q) == 1 and q.device.type == layer_kernels.DEVICE
        if known and cos.shape == (1, q.shape[2], q.shape[3]) and q.stride(3) == k.stride(3) == 1:
            return rotated(q, k, cos, sin)
        return self._own(q, k, cos, sin, *more, **others)


def rotated(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embedding of [1, heads, T, dim] by angles [1, T, dim]; what comes back lies token by token."""
    (_, heads, count, dim), kv_heads = query.shape, key.shape[1]
    outputs = [
        torch.empty(1, count, each.shape[1], dim, dtype=each.dtype, device=each.device).transpose(1, 2)
        for each in (query, key)
    ]
    layer_kernels.rotate[(count,)](
        query,
        key,
        cos.contiguous(),
        sin.contiguous(),
        *outputs,
        query.stride(2),
        query.stride(1),
        key.stride(2),
        key.stride(1),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEADS_PADDED=power_of_two(max(heads, kv_heads)),
        HALF=dim // 2,
        HALF_PADDED=power_of_two(dim // 2),
    )
    return outputs[0], outputs[1]


def _together(rows: torch.Tensor) -> torch.Tensor:
    """[N, dim] with each row's elements side by side."""
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _random(like: torch.Tensor, *size: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randn(size, generator=random).to(like.device, like.dtype)


def _answer(call: Callable[..., Any], *given: torch.Tensor) -> Any:
    """What it returns; None where it does not take this."""
    try:
        return call(*given)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None


def _agree(wanted: Any, got: torch.Tensor) -> bool:
    """True if each row of the last dimension is the same but for roundings."""
    if not isinstance(wanted, torch.Tensor) or wanted.shape != got.shape:
        return False
    apart = (wanted.float() - got.float()).norm(dim=-1)
    return bool((apart <= _TOLERANCE[wanted.dtype] * wanted.float().norm(dim=-1)).all())
