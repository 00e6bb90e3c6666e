"""RMS norms, rotary embeddings and gated activations of a model as one kernel each: transformers computes each of them
in half a dozen, which on a GPU take as long as the matrix products between them.

Knows no architecture. What has the form of one of these is tried on a few rows, and replaced only if its kernel answers
as it does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import gelu, silu

from . import layer_kernels
from .triton_attention import power_of_two

_ROWS = 5
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""A few roundings of the format, as a part of a row's size: kernels round once, at their end."""
_LARGE = 30.0
"""Factor of the rows on a second try, so that a module that limits its values shows it."""
_NORM_ELEMENTS = 2048
_GATE_BLOCK = 1024
_ROPE = "apply_rotary_pos_emb"
"""transformers' name for the function in the modules that have rotary embedding."""
_ACTIVATIONS: dict[bool, Callable[[torch.Tensor], torch.Tensor]] = {
    False: silu,
    True: functools.partial(gelu, approximate="tanh"),
}
"""Activations, by whether `layer_kernels.gate` is told GELU."""


class FusedLayers:
    """What kernels compute of a model, and what they stand for."""

    def __init__(self) -> None:
        self.counts = {"norms": 0, "gates": 0, "rotations": 0}
        self._forwards: list[tuple[Any, Callable[..., torch.Tensor]]] = []
        self._rotations: list[_Rotation] = []

    def replace(self, kind: str, module: Any, forward: Callable[..., torch.Tensor]) -> None:
        """Have `forward` compute a module."""
        module.forward = forward
        self._forwards.append((module, forward))
        self.counts[kind] += 1

    def rotate(self, rotation: _Rotation) -> None:
        """Have a kernel rotate in a module of transformers: for all of its models in this process."""
        rotation.put_in()
        self._rotations.append(rotation)
        self.counts["rotations"] += 1

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Within, the model computes what its own code says: to compare the kernels with."""
        for module, _ in self._forwards:
            del module.forward
        for rotation in self._rotations:
            rotation.take_out()
        try:
            yield
        finally:
            for module, forward in self._forwards:
                module.forward = forward
            for rotation in self._rotations:
                rotation.put_in()


@torch.inference_mode()
def fuse_layers(model: torch.nn.Module) -> FusedLayers:
    """Replace in `model`, which lies where its kernels run, whatever a kernel computes."""
    fused = FusedLayers()
    like = next(model.parameters())
    if like.dtype not in _TOLERANCE:
        return fused
    for module in model.modules():
        if norm := _norm_of(module, like.dtype):
            fused.replace("norms", module, norm)
        elif gate := _gate_of(module, like.dtype):
            fused.replace("gates", module, gate)
    for name, sizes in _rotating(model):
        if rotation := _rotation_of(name, sizes, like):
            fused.rotate(rotation)
    return fused


def _norm_of(module: torch.nn.Module, dtype: torch.dtype) -> Callable[..., torch.Tensor] | None:
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if not type(module).__name__.endswith("RMSNorm") or epsilon is None or not isinstance(weight, torch.Tensor):
        return None
    if weight.ndim != 1 or weight.dtype != dtype:
        return None
    dim = weight.shape[0]
    # columns of many sizes about a mean, so that groups and means count; then rows so small that epsilon does
    rows = _random(weight, _ROWS, dim) * torch.linspace(0.1, 10.0, dim).to(weight) + 0.5
    rows = torch.cat([rows, rows / rows.float().norm(dim=-1, keepdim=True).to(dtype) * (dim * float(epsilon)) ** 0.5])
    wanted = _answer(module, rows)
    both = [functools.partial(normed, weight, float(epsilon), plus_one) for plus_one in (False, True)]
    apart = [_apart(wanted, each(rows)) for each in both]
    nearest = apart.index(min(apart))  # Gemma's weights are what exceeds 1
    return both[nearest] if apart[nearest] <= _TOLERANCE[dtype] else None


def normed(weight: torch.Tensor, epsilon: float, plus_one: bool, states: torch.Tensor) -> torch.Tensor:
    """The RMS norm of each row of [..., dim], times `weight` [dim]."""
    dim, inner = states.shape[-1], 1
    assert weight.shape == (dim,), "rows as wide as the weights"
    if states.ndim == 4 and len(states) == 1 and states.stride(3) == 1:  # heads, which may lie in a wider product
        rows, inner, outer_stride, inner_stride = states, states.shape[2], states.stride(1), states.stride(2)
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


def _gate_of(module: Any, dtype: torch.dtype) -> Callable[..., torch.Tensor] | None:
    """A kernel for a feed-forward module whose down projection reads activation(gate) x up; None for other modules."""
    parts: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = getattr(module, "act_fn", None)
    if not all(isinstance(part, torch.nn.Linear) for part in parts) or not callable(activation):
        return None
    gate, up, down = parts
    if gate.weight.dtype != dtype or gate.weight.shape != up.weight.shape or gate.out_features != down.in_features:
        return None
    gelu = _is_gelu(activation, gate.weight.device)
    if gelu is None:
        return None
    fused = functools.partial(_feed_forward, module, gelu)
    rows = _random(gate.weight, 1, _ROWS, gate.in_features)
    rows = torch.cat([rows, _LARGE * rows], dim=1)
    return fused if _agree(_answer(module, rows), fused(rows)) else None


def _is_gelu(activation: Callable[..., Any], device: torch.device) -> bool | None:
    """Which of the kernel's activations it is; None for any other."""
    steps = torch.linspace(-_LARGE, _LARGE, 1001, device=device)
    said = _answer(activation, steps)
    if not isinstance(said, torch.Tensor):
        return None
    same = (gelu for gelu, known in _ACTIVATIONS.items() if torch.allclose(said, known(steps), atol=1e-4, rtol=1e-4))
    return next(same, None)


def _feed_forward(module: Any, gelu: bool, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = module.down_proj(gated(module.gate_proj(x), module.up_proj(x), gelu))
    return result


def gated(gates: torch.Tensor, values: torch.Tensor, gelu: bool) -> torch.Tensor:
    """activation(gates) x values of [..., dim], by SiLU or by GELU's tanh approximation."""
    assert gates.shape == values.shape, "a value for each gate"
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


def _rotation_of(name: str, sizes: tuple[int, int, int], like: torch.Tensor) -> _Rotation | None:
    """A kernel for a module of transformers whose function rotates halves of whole heads; None for other modules."""
    rotation = _Rotation(name)
    heads, kv_heads, dim = sizes
    if dim % 2:
        return None
    query, key = (_random(like, 1, _ROWS, count, dim).transpose(1, 2) for count in (heads, kv_heads))
    angles = _random(like, 1, _ROWS, dim // 2).float().repeat(1, 1, 2)
    given = (query, key, angles.cos().to(like.dtype), angles.sin().to(like.dtype))
    wanted = _answer(rotation.own, *given)
    return rotation if isinstance(wanted, tuple) and all(map(_agree, wanted, rotated(*given))) else None


class _Rotation:
    """Replaces the function of a module of transformers, whichever model and device call it."""

    def __init__(self, name: str) -> None:
        self._module = sys.modules[name]
        found = getattr(self._module, _ROPE)
        self.own: Callable[..., Any] = found.own if isinstance(found, _Rotation) else found

    def put_in(self) -> None:
        setattr(self._module, _ROPE, self)

    def take_out(self) -> None:
        setattr(self._module, _ROPE, self.own)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *more: Any, **others: Any
    ) -> Any:
        given_alone = not more and not others and isinstance(k, torch.Tensor)
        if given_alone and _is_turned(q, cos) and q.stride(3) == k.stride(3) == 1:
            return rotated(q, k, cos, sin)
        return self.own(q, k, cos, sin, *more, **others)


def _is_turned(query: torch.Tensor, cos: torch.Tensor) -> bool:
    """Whether the kernel takes these: whole heads of one packed batch where it runs, without gradients."""
    if query.ndim != 4 or query.device.type != layer_kernels.DEVICE or torch.is_grad_enabled():
        return False
    return len(query) == 1 and cos.shape == (1, query.shape[2], query.shape[3])


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


def _apart(wanted: Any, got: torch.Tensor) -> float:
    """How far the worst row of the last dimension is off, as a part of its size; infinite where the shape differs."""
    if not isinstance(wanted, torch.Tensor) or wanted.shape != got.shape:
        return float("inf")
    return float(((wanted.float() - got.float()).norm(dim=-1) / wanted.float().norm(dim=-1)).max())


def _agree(wanted: Any, got: torch.Tensor) -> bool:
    """True if each row of the last dimension is the same but for roundings."""
    return _apart(wanted, got) <= _TOLERANCE[got.dtype]
