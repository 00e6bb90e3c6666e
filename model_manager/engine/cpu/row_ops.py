"""Vector instructions for what a step does to single rows: normalise, quantise, rotate; and how its threads meet.

Knows rows of float32, bfloat16 or int8 at addresses; not layers. Rows are multiples of 16 elements long.
"""

from __future__ import annotations

import enum
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from .matrix_ops import LANES, Format
from .vector_ops import F32, I32, I64, Vectors, inlined, number

_MOST = 127.0
_ZERO_POINT = 128
_LEAST = 1e-30


class Norm(enum.IntEnum):
    """Kinds of normalisation."""

    LAYER = 0
    RMS = 1


class _Rows(Vectors):
    """Emits reductions over rows."""

    def scalar(self, value: float) -> Any:
        return ir.Constant(F32, value)

    def sqrt(self, x: Any) -> Any:
        return self.call("llvm.sqrt.f32", F32, [x])

    def load_float(self, address: Any) -> Any:
        return self.builder.load(self.builder.inttoptr(address, F32.as_pointer()), align=4)

    def store_float(self, value: Any, address: Any) -> None:
        self.builder.store(value, self.builder.inttoptr(address, F32.as_pointer()), align=4)

    def quantize(self, source: Any, count: Any, extent: Any, out: Any, scale_out: Any) -> None:
        """out[:count] (uint8) = source[:count] / scale + 128, the scale stored; `extent` is |source|'s vector maximum.

        A row that is not finite gets a scale that is not, so that what is computed from it is not either.
        """
        b = self.builder
        most = self.largest(b.load(extent[0]))
        bound = b.select(b.fcmp_ordered(">", most, self.scalar(_LEAST)), most, self.scalar(_LEAST))
        nothing = self.total(b.load(extent[1]))  # 0, or NaN
        self.store_float(b.fadd(b.fmul(bound, self.scalar(1.0 / _MOST)), nothing), scale_out)
        factor = self.broadcast(b.fdiv(self.scalar(_MOST), bound))
        plain = Vectors(b, self.lanes, self.itemsize)
        words, octets = ir.VectorType(I32, self.lanes), ir.VectorType(ir.IntType(8), self.lanes)
        with cgutils.for_range_slice(b, number(0), count, number(self.lanes)) as (i, _):
            scaled = self.call(f"llvm.rint.v{self.lanes}f32", self.type, [b.fmul(plain.load(source, i), factor)])
            whole = self.call(f"llvm.fptosi.sat.v{self.lanes}i32.v{self.lanes}f32", words, [scaled])
            biased = b.add(whole, ir.Constant(words, [_ZERO_POINT] * self.lanes))
            b.store(b.trunc(biased, octets), b.inttoptr(b.add(out, i), octets.as_pointer()), align=1)

    def extent(self) -> list[Any]:
        """Where `reach` keeps the largest magnitude, and a sum that is NaN once something was not finite."""
        return self.accumulators(2)

    def reach(self, extent: list[Any], x: Any) -> None:
        b = self.builder
        b.store(self.max(self.size(x), b.load(extent[0])), extent[0])
        b.store(self.fma(x, self.constant(0.0), b.load(extent[1])), extent[1])


@inlined(types.void, literals=2)
def normalize_row(
    b: Any, x: Any, dim: Any, weight: Any, bias: Any, epsilon: Any, out: Any, scratch: Any, scale_out: Any,
    norm: int, fmt: int,
) -> None:  # fmt: skip
    """out[:dim] in `fmt` = the normalised x[:dim] (float32) times weight plus bias.

    `epsilon` is the address of a float32; `scratch` (dim float32) and `scale_out` serve int8 alone.
    """
    rows = _Rows(b, LANES)
    out_rows = _Rows(b, LANES, 4 if fmt == Format.INT8 else fmt)
    size = rows.broadcast(b.sitofp(dim, F32))
    total, squares = rows.accumulators(2)
    if norm == Norm.LAYER:
        with cgutils.for_range_slice(b, number(0), dim, number(LANES)) as (i, _):
            b.store(b.fadd(b.load(total), rows.load(x, i)), total)
    mean = b.fdiv(rows.broadcast(rows.total(b.load(total))), size)
    with cgutils.for_range_slice(b, number(0), dim, number(LANES)) as (i, _):
        centred = b.fsub(rows.load(x, i), mean)
        b.store(rows.fma(centred, centred, b.load(squares)), squares)
    variance = b.fdiv(rows.total(b.load(squares)), b.sitofp(dim, F32))
    deviation = rows.sqrt(b.fadd(variance, rows.load_float(epsilon)))
    factor = rows.broadcast(b.fdiv(rows.scalar(1.0), deviation))
    extent, target = rows.extent(), scratch if fmt == Format.INT8 else out
    with cgutils.for_range_slice(b, number(0), dim, number(LANES)) as (i, _):
        centred = b.fmul(b.fsub(rows.load(x, i), mean), factor)
        value = rows.fma(centred, rows.load(weight, i), rows.load(bias, i))
        if fmt == Format.INT8:
            rows.reach(extent, value)
        out_rows.store(value, target, i)
    if fmt == Format.INT8:
        rows.quantize(scratch, dim, extent, out, scale_out)


@inlined(types.void, literals=1)
def quantize_row(b: Any, x: Any, dim: Any, out: Any, scale_out: Any, itemsize: int) -> None:
    """out[:dim] (uint8, 128 is zero) and its scale, from x[:dim]."""
    rows = _Rows(b, LANES, itemsize)
    extent = rows.extent()
    with cgutils.for_range_slice(b, number(0), dim, number(LANES)) as (i, _):
        rows.reach(extent, rows.load(x, i))
    rows.quantize(x, dim, extent, out, scale_out)


@inlined(types.void, literals=2)
def rotate_head(b: Any, x: Any, half: Any, cos: Any, sin: Any, lanes: int, itemsize: int) -> None:
    """Rotary embedding of a head's first 2 * half elements, in place: pairs are `half` apart (Su et al. 2021)."""
    memory, plain = Vectors(b, lanes, itemsize), Vectors(b, lanes)
    with cgutils.for_range_slice(b, number(0), half, number(lanes)) as (i, _):
        j = b.add(i, half)
        first, second = memory.load(x, i), memory.load(x, j)
        c, s = plain.load(cos, i), plain.load(sin, i)
        memory.store(b.fsub(b.fmul(first, c), b.fmul(second, s)), x, i)
        memory.store(b.fadd(b.fmul(second, c), b.fmul(first, s)), x, j)


@inlined(types.void, literals=2)
def normalize_head(b: Any, x: Any, dim: Any, weight: Any, epsilon: Any, lanes: int, itemsize: int) -> None:
    """RMS normalisation of a head in place."""
    memory, rows = Vectors(b, lanes, itemsize), _Rows(b, lanes)
    squares = rows.accumulators(1)[0]
    with cgutils.for_range_slice(b, number(0), dim, number(lanes)) as (i, _):
        value = memory.load(x, i)
        b.store(rows.fma(value, value, b.load(squares)), squares)
    mean = b.fdiv(rows.total(b.load(squares)), b.sitofp(dim, F32))
    factor = rows.broadcast(b.fdiv(rows.scalar(1.0), rows.sqrt(b.fadd(mean, rows.load_float(epsilon)))))
    with cgutils.for_range_slice(b, number(0), dim, number(lanes)) as (i, _):
        memory.store(b.fmul(b.fmul(memory.load(x, i), factor), rows.load(weight, i)), x, i)


@inlined(types.void)
def call_kernel(b: Any, address: Any, argument: Any) -> None:
    """Call the function at `address`, which takes one int64."""
    function = ir.FunctionType(ir.VoidType(), [I64]).as_pointer()
    b.call(b.inttoptr(address, function), [argument])


@inlined(types.int64)
def call_count(b: Any, address: Any) -> Any:
    """What the function at `address`, which takes nothing and returns an int32, returns."""
    function = ir.FunctionType(I32, []).as_pointer()
    return b.sext(b.call(b.inttoptr(address, function), []), I64)


@inlined(types.int64)
def arrive(b: Any, counter: Any) -> Any:
    """Add one to the int64 at `counter`, after everything before and before everything after; what it was."""
    return b.atomic_rmw("add", b.inttoptr(counter, I64.as_pointer()), number(1), "seq_cst")


@inlined(types.int64)
def look(b: Any, counter: Any) -> Any:
    """The int64 at `counter`, as another thread may have left it."""
    return b.load_atomic(b.inttoptr(counter, I64.as_pointer()), "seq_cst", 8)


@inlined(types.void)
def pause(b: Any) -> None:
    """Let the core's other thread go first for a moment."""
    signature = ir.FunctionType(ir.VoidType(), [])
    b.call(cgutils.get_or_insert_function(b.module, signature, "llvm.x86.sse2.pause"), [])
