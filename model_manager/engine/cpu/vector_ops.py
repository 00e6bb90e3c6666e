"""Vector instructions for Numba kernels: short pieces of LLVM code that work on memory addresses.

Each is an intrinsic, so it is compiled into the kernel that calls it; all vectors are float32, whatever the memory
holds. Memory formats are told apart by `itemsize`: 4 is float32, 2 is bfloat16 (the upper half of a float32), 1 is
int8 (in steps of a scale that the caller keeps elsewhere). `lanes`
(8 or 16) is the vectors' length; both must be literals. Knows nothing of pages or heads.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F32, _I8, I16, I32, I64 = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
_FAST = ("reassoc",)
_CACHE_LINE = 64
LOWEST_EXPONENT = -126.0
EXP2 = (1.0, 0.693147181, 0.240226507, 0.0555041087, 0.00961812911, 0.00133335581, 1.54035304e-4, 1.52527338e-5)
"""Taylor coefficients of 2**x; on [-0.5, 0.5] the error stays below a float32's resolution."""
_TANH_OVER, _TANH_UNDER = (135135.0, 17325.0, 378.0, 1.0), (135135.0, 62370.0, 3150.0, 28.0)
"""tanh(x) = x over(x²) / under(x²); on [-1, 1] likewise."""


class Vectors:
    """Emits vector code at one place of a function being compiled."""

    def __init__(self, builder: Any, lanes: int, itemsize: int = 4) -> None:
        self.builder = builder
        self.lanes = lanes
        self.itemsize = itemsize
        self.type = ir.VectorType(F32, lanes)
        self._ints = ir.VectorType(I32, lanes)

    def constant(self, value: float) -> Any:
        return ir.Constant(self.type, [value] * self.lanes)

    def ints(self, value: int) -> Any:
        return ir.Constant(self._ints, [value] * self.lanes)

    def address(self, base: Any, index: Any, itemsize: int) -> Any:
        return self.builder.add(base, self.builder.mul(index, ir.Constant(I64, itemsize)))

    def load(self, base: Any, index: Any) -> Any:
        """`lanes` values of the memory format from `index` on, as float32."""
        address = self.address(base, index, self.itemsize)
        if self.itemsize == 4:
            return self.builder.load(self.builder.inttoptr(address, self.type.as_pointer()), align=4)
        if self.itemsize == 1:
            steps = ir.VectorType(_I8, self.lanes).as_pointer()
            loaded = self.builder.load(self.builder.inttoptr(address, steps), align=1)
            return self.builder.sitofp(self.builder.sext(loaded, self._ints), self.type)
        halves = ir.VectorType(I16, self.lanes)
        loaded = self.builder.load(self.builder.inttoptr(address, halves.as_pointer()), align=2)
        wide = self.builder.shl(self.builder.zext(loaded, self._ints), self.ints(16))
        return self.builder.bitcast(wide, self.type)

    def store(self, value: Any, base: Any, index: Any) -> None:
        """Round to the memory format (to nearest, ties to even) and store."""
        address = self.address(base, index, self.itemsize)
        if self.itemsize == 4:
            self.builder.store(value, self.builder.inttoptr(address, self.type.as_pointer()), align=4)
            return
        halves = ir.VectorType(I16, self.lanes)
        bits = self.builder.bitcast(value, self._ints)
        odd = self.builder.and_(self.builder.lshr(bits, self.ints(16)), self.ints(1))
        rounded = self.builder.add(self.builder.add(bits, self.ints(0x7FFF)), odd)
        upper = self.builder.trunc(self.builder.lshr(rounded, self.ints(16)), halves)
        self.builder.store(upper, self.builder.inttoptr(address, halves.as_pointer()), align=2)

    def scatter_steps(self, value: Any, base: Any, index: Any, step: Any) -> None:
        """Round to int8 (to nearest, ties to even; NaN is 0) and store lane i at base[(index + i) * step]."""
        whole = self.call(f"llvm.rint.v{self.lanes}f32", self.type, [value])
        bytes_ = ir.VectorType(_I8, self.lanes)
        steps = self.call(f"llvm.fptosi.sat.v{self.lanes}i8.v{self.lanes}f32", bytes_, [whole])
        for lane in range(self.lanes):
            place = self.address(base, self.builder.mul(self.builder.add(index, number(lane)), step), 1)
            element = self.builder.extract_element(steps, ir.Constant(I32, lane))
            self.builder.store(element, self.builder.inttoptr(place, _I8.as_pointer()))

    def broadcast(self, scalar: Any) -> Any:
        first = self.builder.insert_element(ir.Constant(self.type, ir.Undefined), scalar, ir.Constant(I32, 0))
        zeros = ir.Constant(self._ints, [0] * self.lanes)
        return self.builder.shuffle_vector(first, ir.Constant(self.type, ir.Undefined), zeros)

    def load_broadcast(self, base: Any, index: Any) -> Any:
        """One float32 in every lane."""
        address = self.address(base, index, 4)
        return self.broadcast(self.builder.load(self.builder.inttoptr(address, F32.as_pointer()), align=4))

    def call(self, name: str, returns: Any, arguments: list[Any], fast: tuple[str, ...] = ()) -> Any:
        signature = ir.FunctionType(returns, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, signature, name)
        return self.builder.call(function, arguments, fastmath=fast)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.call(f"llvm.fma.v{self.lanes}f32", self.type, [a, b, c])

    def max(self, a: Any, b: Any) -> Any:
        """The greater value of each lane; `b` where either is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def size(self, x: Any) -> Any:
        """Absolute value of each lane."""
        return self.call(f"llvm.fabs.v{self.lanes}f32", self.type, [x])

    def largest(self, vector: Any) -> Any:
        return self.call(f"llvm.vector.reduce.fmax.v{self.lanes}f32", F32, [vector])

    def total(self, vector: Any) -> Any:
        return self.call(f"llvm.vector.reduce.fadd.v{self.lanes}f32", F32, [ir.Constant(F32, 0.0), vector], _FAST)

    def exp2(self, x: Any) -> Any:
        """2**x for x ≤ 0; NaN stays NaN."""
        x = self.max(self.constant(LOWEST_EXPONENT), x)
        whole = self.call(f"llvm.rint.v{self.lanes}f32", self.type, [x])
        fraction = self.builder.fsub(x, whole)
        result = self._polynomial(EXP2, fraction)
        exponent = self.builder.shl(self.builder.fptosi(whole, self._ints), self.ints(23))
        return self.builder.bitcast(self.builder.add(self.builder.bitcast(result, self._ints), exponent), self.type)

    def tanh(self, x: Any) -> Any:
        """Hyperbolic tangent; NaN stays NaN. Below 1 the 7th convergent of Lambert's continued fraction, then exp2."""
        size = self.size(x)
        small = self.builder.fcmp_ordered("<", size, self.constant(1.0))
        square = self.builder.fmul(x, x)
        series = self.builder.fdiv(self._polynomial(_TANH_OVER, square), self._polynomial(_TANH_UNDER, square))
        power = self.exp2(self.builder.fmul(size, self.constant(-2 * math.log2(math.e))))
        one = self.constant(1.0)
        large = self.builder.fdiv(self.builder.fsub(one, power), self.builder.fadd(one, power))
        signed = self.call(f"llvm.copysign.v{self.lanes}f32", self.type, [large, x])
        return self.builder.select(small, self.builder.fmul(x, series), signed)

    def _polynomial(self, coefficients: tuple[float, ...], x: Any) -> Any:
        """The polynomial with these coefficients, of rising powers of x."""
        result = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.constant(coefficient))
        return result

    def inside(self, start: Any, low: Any, high: Any) -> Any:
        """Which of the positions start, start + 1, … lie in low .. high - 1 (all int64)."""
        lane_numbers = ir.Constant(self._ints, list(range(self.lanes)))
        first = self.spread_int(self.builder.trunc(self.builder.sub(low, start), I32))
        end = self.spread_int(self.builder.trunc(self.builder.sub(high, start), I32))
        return self.builder.and_(
            self.builder.icmp_signed(">=", lane_numbers, first), self.builder.icmp_signed("<", lane_numbers, end)
        )

    def spread_int(self, scalar: Any) -> Any:
        undefined = ir.Constant(self._ints, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(self._ints, [0] * self.lanes))

    def accumulators(self, count: int) -> list[Any]:
        slots = [cgutils.alloca_once(self.builder, self.type) for _ in range(count)]
        for slot in slots:
            self.builder.store(self.constant(0.0), slot)
        return slots


def ask_for(b: Any, address: Any) -> None:
    """Emit what has a line of memory brought into the second-level cache."""
    pointer = ir.IntType(8).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
    function = cgutils.get_or_insert_function(b.module, signature, "llvm.prefetch.p0")
    read, keep, data = (ir.Constant(I32, value) for value in (0, 2, 1))
    b.call(function, [b.inttoptr(address, pointer), read, keep, data])


def number(value: int) -> Any:
    """An int64 that is known when the kernel is compiled."""
    return ir.Constant(I64, value)


def inlined(returns: Any, literals: int = 0, others: tuple[Any, ...] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic of a function that emits code. Its arguments are int64, then of the types `others`, then
    `literals` constants.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        def define(_typing: Any, *arguments: Any) -> Any:
            values = len(arguments) - literals
            kinds = [*[types.int64] * (values - len(others)), *others]
            constants = [argument.literal_value for argument in arguments[values:]]

            def generate(context: Any, builder: Any, _signature: Any, operands: Any) -> Any:
                result = emit(builder, *operands[:values], *constants)
                return context.get_dummy_value() if result is None else result

            return returns(*kinds, *arguments[values:]), generate

        functools.update_wrapper(define, emit)
        define.__dict__["__signature__"] = inspect.signature(emit)
        return intrinsic(prefer_literal=True)(define)

    return decorate


@inlined(types.int64)
def load_int32(b: Any, base: Any, index: Any) -> Any:
    """The int32 at base[index], widened."""
    address = b.add(base, b.mul(index, number(4)))
    return b.sext(b.load(b.inttoptr(address, I32.as_pointer())), I64)


@inlined(types.int64)
def load_int64(b: Any, base: Any, index: Any) -> Any:
    """The int64 at base[index]."""
    return b.load(b.inttoptr(b.add(base, b.mul(index, number(8))), I64.as_pointer()))


@inlined(types.int64)
def fetch_add(b: Any, address: Any) -> Any:
    """Add one to the int64 at `address` atomically; what it was."""
    return b.atomic_rmw("add", b.inttoptr(address, I64.as_pointer()), number(1), "monotonic")


@inlined(types.void)
def prefetch(b: Any, address: Any, size: Any) -> None:
    """Ask for `size` bytes from `address` on to be brought into the cache."""
    with cgutils.for_range_slice(b, number(0), size, number(_CACHE_LINE)) as (i, _):
        ask_for(b, b.add(address, i))


@inlined(types.void, literals=1)
def spread(b: Any, source: Any, target: Any, count: Any, step: Any, itemsize: int) -> None:
    """target[i * step] = source[i] for i < count, as they are."""
    element = ir.IntType(8 * itemsize).as_pointer()
    with cgutils.for_range_slice(b, number(0), count, number(1)) as (i, _):
        value = b.load(b.inttoptr(b.add(source, b.mul(i, number(itemsize))), element))
        place = b.add(target, b.mul(b.mul(i, step), number(itemsize)))
        b.store(value, b.inttoptr(place, element))


@inlined(types.void, literals=2)
def round_row(b: Any, source: Any, target: Any, count: Any, step: Any, scale: Any, lanes: int, itemsize: int) -> None:
    """target[i * step] (int8) = source[i] (itemsize) in steps of what the float32 at address `scale` is set to.

    That is the largest size among the `count` over 127; NaN if one of them is not finite.
    """
    memory, plain = Vectors(b, lanes, itemsize), Vectors(b, lanes)
    largest, nothing = plain.accumulators(2)
    with cgutils.for_range_slice(b, number(0), count, number(lanes)) as (i, _):
        values = memory.load(source, i)
        b.store(plain.max(plain.size(values), b.load(largest)), largest)
        b.store(plain.fma(values, plain.constant(0.0), b.load(nothing)), nothing)
    top = b.fadd(plain.largest(b.load(largest)), plain.total(b.load(nothing)))  # 0 x NaN and 0 x infinity are NaN
    b.store(b.fdiv(top, ir.Constant(F32, 127.0)), b.inttoptr(scale, F32.as_pointer()))
    factor = plain.broadcast(b.fdiv(ir.Constant(F32, 127.0), top))
    with cgutils.for_range_slice(b, number(0), count, number(lanes)) as (i, _):
        plain.scatter_steps(b.fmul(memory.load(source, i), factor), target, i, step)


@inlined(types.void, literals=1)
def multiply_row(b: Any, row: Any, factors: Any, lanes: int) -> None:
    """row[:lanes] *= factors[:lanes], all float32."""
    plain = Vectors(b, lanes)
    plain.store(b.fmul(plain.load(row, number(0)), plain.load(factors, number(0))), row, number(0))


@inlined(types.void, literals=1)
def clear_row(b: Any, target: Any, count: Any, lanes: int) -> None:
    """target[:count] (float32) = 0."""
    plain = Vectors(b, lanes)
    with cgutils.for_range_slice(b, number(0), count, number(lanes)) as (i, _):
        plain.store(plain.constant(0.0), target, i)


@inlined(types.void, literals=2)
def scale_row(b: Any, source: Any, target: Any, count: Any, scale: Any, lanes: int, itemsize: int) -> None:
    """target[:count] (float32) = source[:count] (itemsize) times the float32 that lies at address `scale`."""
    memory, plain = Vectors(b, lanes, itemsize), Vectors(b, lanes)
    factor = plain.load_broadcast(scale, number(0))
    with cgutils.for_range_slice(b, number(0), count, number(lanes)) as (i, _):
        plain.store(b.fmul(memory.load(source, i), factor), target, i)


@inlined(types.void, literals=2)
def divide_row(b: Any, source: Any, target: Any, count: Any, divisor: Any, lanes: int, itemsize: int) -> None:
    """target[:count] (itemsize) = source[:count] (float32) divided by the float32 that lies at address `divisor`."""
    memory, plain = Vectors(b, lanes, itemsize), Vectors(b, lanes)
    factor = b.fdiv(plain.constant(1.0), plain.load_broadcast(divisor, number(0)))
    with cgutils.for_range_slice(b, number(0), count, number(lanes)) as (i, _):
        memory.store(b.fmul(plain.load(source, i), factor), target, i)


@inlined(types.void, literals=3)
def dot_rows(
    b: Any, q: Any, q_stride: Any, k: Any, dim: Any, s: Any, s_stride: Any, rows: int, lanes: int, itemsize: int
) -> None:
    """s[r, :lanes] = sum over d of q[r, d] * k[d, :lanes], for `rows` rows; q and s are float32."""
    memory, plain = Vectors(b, lanes, itemsize), Vectors(b, lanes)
    unroll = 4 if rows == 1 else 2  # enough independent sums to hide how long one takes
    sums = plain.accumulators(rows * unroll)
    with cgutils.for_range_slice(b, number(0), dim, number(unroll)) as (start, _):
        for u in range(unroll):
            d = b.add(start, number(u))
            keys = memory.load(k, b.mul(d, number(lanes)))
            for r in range(rows):
                query = plain.load_broadcast(q, b.add(b.mul(q_stride, number(r)), d))
                slot = sums[r * unroll + u]
                b.store(plain.fma(query, keys, b.load(slot)), slot)
    for r in range(rows):
        total = b.load(sums[r * unroll])
        for u in range(1, unroll):
            total = b.fadd(total, b.load(sums[r * unroll + u]))
        plain.store(total, s, b.mul(s_stride, number(r)))


@inlined(types.void, literals=4)
def add_weighted_rows(
    b: Any, p: Any, p_stride: Any, v: Any, dim: Any, count: Any, out: Any,
    rows: int, width: int, lanes: int, itemsize: int,
) -> None:  # fmt: skip
    """out[r, :width * lanes] += sum over t < count of p[r, t] * v[t, :]; rows of v and out are `dim` apart."""
    memory, plain = Vectors(b, lanes, itemsize), Vectors(b, lanes)
    places = [(r, w, b.add(b.mul(dim, number(r)), number(w * lanes))) for r in range(rows) for w in range(width)]
    sums = plain.accumulators(len(places))
    for slot, (_r, _w, place) in zip(sums, places, strict=True):
        b.store(plain.load(out, place), slot)
    with cgutils.for_range_slice(b, number(0), count, number(1)) as (t, _):
        row = b.mul(t, dim)
        values = [memory.load(v, b.add(row, number(w * lanes))) for w in range(width)]
        weights = [plain.load_broadcast(p, b.add(b.mul(p_stride, number(r)), t)) for r in range(rows)]
        for slot, (r, w, _place) in zip(sums, places, strict=True):
            b.store(plain.fma(weights[r], values[w], b.load(slot)), slot)
    for slot, (_r, _w, place) in zip(sums, places, strict=True):
        plain.store(b.load(slot), out, place)


@inlined(types.void)
def start_state(b: Any, state: Any) -> None:
    """A row's (maximum, sum) before anything has been seen."""
    for index, value in enumerate((float("-inf"), 0.0)):
        b.store(ir.Constant(F32, value), b.inttoptr(b.add(state, number(4 * index)), F32.as_pointer()))


@inlined(types.void)
def start_state_with(b: Any, state: Any, sinks: Any, index: Any) -> None:
    """A row's (maximum, sum) after one score that has no value: the float32 at sinks[index]."""
    score = b.load(b.inttoptr(b.add(sinks, b.mul(index, number(4))), F32.as_pointer()))
    b.store(score, b.inttoptr(state, F32.as_pointer()))
    b.store(ir.Constant(F32, 1.0), b.inttoptr(b.add(state, number(4)), F32.as_pointer()))


@inlined(types.void, literals=1)
def cap_row(b: Any, s: Any, count: Any, cap: Any, lanes: int) -> None:
    """s[:count] = cap tanh(s[:count]), with the float32 that lies at address `cap`."""
    plain = Vectors(b, lanes)
    factor = plain.load_broadcast(cap, number(0))
    with cgutils.for_range_slice(b, number(0), count, number(lanes)) as (i, _):
        plain.store(b.fmul(plain.tanh(plain.load(s, i)), factor), s, i)


@inlined(types.void, literals=1)
def softmax_row(b: Any, s: Any, count: Any, low: Any, high: Any, state: Any, out: Any, dim: Any, lanes: int) -> None:
    """One more stretch of a row's softmax, in base 2 (Milakov and Gimelshein, arXiv:1805.02867).

    s[:count] holds scores and gets weights: 0 outside low .. high - 1. `state` holds (maximum, sum) so far and is
    brought up to date, as is what `out[:dim]` has accumulated. At least one score must be inside.
    """
    plain = Vectors(b, lanes)
    old = plain.load_broadcast(state, number(0))
    largest, total = cgutils.alloca_once_value(b, old), plain.accumulators(1)[0]
    with cgutils.for_range_slice(b, number(0), count, number(lanes)) as (i, _):
        scores = b.select(plain.inside(i, low, high), plain.load(s, i), plain.constant(float("-inf")))
        b.store(plain.max(scores, b.load(largest)), largest)
    top = plain.largest(b.load(largest))
    new = plain.broadcast(top)
    with cgutils.for_range_slice(b, number(0), count, number(lanes)) as (i, _):
        weights = plain.exp2(b.fsub(plain.load(s, i), new))
        weights = b.select(plain.inside(i, low, high), weights, plain.constant(0.0))
        plain.store(weights, s, i)
        b.store(b.fadd(b.load(total), weights), total)
    shrink = plain.exp2(b.fsub(old, new))
    with cgutils.for_range_slice(b, number(0), dim, number(lanes)) as (i, _):
        plain.store(b.fmul(plain.load(out, i), shrink), out, i)
    place = b.inttoptr(b.add(state, number(4)), F32.as_pointer())
    kept = b.fmul(b.load(place), b.extract_element(shrink, ir.Constant(I32, 0)))
    b.store(b.fadd(kept, plain.total(b.load(total))), place)
    b.store(top, b.inttoptr(state, F32.as_pointer()))
