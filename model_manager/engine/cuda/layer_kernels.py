"""Small layers as one kernel each, in Triton: RMS norms, rotary embedding, gated activations.

Each computes in float32 and rounds once, at its end. Rows are [DIM] and lie anywhere; results lie together.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

DEVICE = "cpu" if knobs.runtime.interpret else "cuda"
"""Where these run."""


@triton.jit(do_not_specialize=["num_rows"])
def norm(
    states: tl.tensor,
    weight: tl.tensor,
    output: tl.tensor,
    num_rows: tl.tensor,
    outer_stride: tl.tensor,
    inner_stride: tl.tensor,
    epsilon: tl.tensor,
    INNER: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PLUS_ONE: tl.constexpr,
) -> None:
    """ROWS rows a program; row r is at (r // INNER, r % INNER)."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    dim = tl.arange(0, DIM_PADDED)
    real = (row < num_rows)[:, None] & (dim < DIM)[None, :]
    place = (row // INNER * outer_stride + row % INNER * inner_stride)[:, None] + dim[None, :]
    values = tl.load(states + place, mask=real, other=0.0).to(tl.float32)
    factor = tl.load(weight + dim, mask=dim < DIM, other=0.0).to(tl.float32)
    if PLUS_ONE:
        factor += 1.0
    mean = tl.sum(values * values, 1) / DIM
    result = values * tl.rsqrt(mean + epsilon)[:, None] * factor[None, :]
    tl.store(output + row[:, None] * DIM + dim[None, :], result.to(output.dtype.element_ty), mask=real)


@triton.jit
def rotate(
    query: tl.tensor,
    key: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    rotated_query: tl.tensor,
    rotated_key: tl.tensor,
    query_stride: tl.tensor,
    query_head_stride: tl.tensor,
    key_stride: tl.tensor,
    key_head_stride: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
) -> None:
    """Program t turns all heads of token t: the first half of a head with its second (Su et al., arXiv:2104.09864)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_PADDED)
    half = tl.arange(0, HALF_PADDED)
    place = token * 2 * HALF + half
    inside = half < HALF
    cos_low = tl.load(cos + place, mask=inside, other=0.0).to(tl.float32)[None, :]
    cos_high = tl.load(cos + place + HALF, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_low = tl.load(sin + place, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_high = tl.load(sin + place + HALF, mask=inside, other=0.0).to(tl.float32)[None, :]
    _turn(query + token * query_stride, query_head_stride, rotated_query + token * (HEADS * 2 * HALF), head < HEADS,
          head, half, inside, cos_low, cos_high, sin_low, sin_high, HALF)  # fmt: skip
    _turn(key + token * key_stride, key_head_stride, rotated_key + token * (KV_HEADS * 2 * HALF), head < KV_HEADS,
          head, half, inside, cos_low, cos_high, sin_low, sin_high, HALF)  # fmt: skip


@triton.jit
def _turn(
    states: tl.tensor,
    stride: tl.tensor,
    output: tl.tensor,
    there: tl.tensor,
    head: tl.tensor,
    half: tl.tensor,
    inside: tl.tensor,
    cos_low: tl.tensor,
    cos_high: tl.tensor,
    sin_low: tl.tensor,
    sin_high: tl.tensor,
    HALF: tl.constexpr,
) -> None:
    """Turn one token's heads that are `there`."""
    real = there[:, None] & inside[None, :]
    place = head[:, None] * stride + half[None, :]
    low = tl.load(states + place, mask=real, other=0.0).to(tl.float32)
    high = tl.load(states + place + HALF, mask=real, other=0.0).to(tl.float32)
    to = output + head[:, None] * (2 * HALF) + half[None, :]
    tl.store(to, (low * cos_low - high * sin_low).to(output.dtype.element_ty), mask=real)
    tl.store(to + HALF, (high * cos_high + low * sin_high).to(output.dtype.element_ty), mask=real)


@triton.jit
def gate(
    gates: tl.tensor,
    values: tl.tensor,
    output: tl.tensor,
    gate_stride: tl.tensor,
    value_stride: tl.tensor,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    GELU: tl.constexpr,
) -> None:
    """Program (t, part): activation(gates) x values of a part of row t, by SiLU or by GELU's tanh approximation."""
    row = tl.program_id(0).to(tl.int64)
    dim = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = dim < DIM
    x = tl.load(gates + row * gate_stride + dim, mask=real, other=0.0).to(tl.float32)
    value = tl.load(values + row * value_stride + dim, mask=real, other=0.0).to(tl.float32)
    slope = 1.5957691216057308 * (x + 0.044715 * x * x * x) if GELU else x
    result = x * tl.sigmoid(slope) * value
    tl.store(output + row * DIM + dim, result.to(output.dtype.element_ty), mask=real)
