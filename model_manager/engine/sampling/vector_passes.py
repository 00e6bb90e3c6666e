"""Vector instructions for the CPU's sampling kernel: single passes over rows of float32 at given addresses.

Arrays are read and written in strides of 64 elements, so they are padded with values that change nothing: -infinity for
logits, 0 for weights. Sums are float32 within a block of 1024 elements and float64 over blocks, equal in whatever
thread. Knows rows; not what is sampled from them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from ..cpu.vector_ops import F32, I32, I64, LOWEST_EXPONENT, Vectors, inlined, number
from .kernel_record import BLOCK

LANES = 16
_UNROLL = 4
_STRIDE = LANES * _UNROLL
_F64 = ir.DoubleType()
_INFINITY = float("inf")
_FLOAT, _TWO_FLOATS, _DOUBLE = (types.float32,), (types.float32,) * 2, (types.float64,)


def _has(feature: str) -> bool:
    """True if the processor that Numba compiles for has the feature."""
    features: str = numba.config.CPU_FEATURES or get_host_cpu_features().flatten()
    return f"+{feature}" in features.split(",")


class _Rows(Vectors):
    """Emits passes."""

    def __init__(self, builder: Any) -> None:
        super().__init__(builder, LANES)
        self.whole = ir.VectorType(I32, LANES)
        self.bits = ir.VectorType(ir.IntType(1), LANES)

    @contextmanager
    def strides(self, start: Any, end: Any) -> Iterator[list[Any]]:
        """Where the vectors of each stride begin."""
        with cgutils.for_range_slice(self.builder, start, end, number(_STRIDE)) as (i, _):
            yield [self.builder.add(i, number(LANES * u)) for u in range(_UNROLL)]

    @contextmanager
    def blocks(self, count: Any) -> Iterator[tuple[Any, Any]]:
        """Where each block begins and ends."""
        b = self.builder
        with cgutils.for_range_slice(b, number(0), count, number(BLOCK)) as (start, _):
            end = b.add(start, number(BLOCK))
            yield start, b.select(b.icmp_signed("<", end, count), end, count)

    def reset(self, slots: list[Any], value: float) -> None:
        for slot in slots:
            self.builder.store(self.constant(value), slot)

    def combined(self, slots: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
        """All slots combined into one vector."""
        vectors = [self.builder.load(slot) for slot in slots]
        return functools.reduce(combine, vectors)

    def maximum(self, one: Any, other: Any) -> Any:
        """The greater of each lane; NaN if either is."""
        return self.call(f"llvm.maximum.v{self.lanes}f32", self.type, [one, other], ("nsz",))

    def min(self, one: Any, other: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", one, other), one, other)

    def numbers(self, start: Any) -> Any:
        """start, start + 1, … as int32."""
        b, nothing = self.builder, ir.Constant(self.whole, ir.Undefined)
        first = b.insert_element(nothing, b.trunc(start, I32), ir.Constant(I32, 0))
        return b.add(b.shuffle_vector(first, nothing, self.ints(0)), ir.Constant(self.whole, list(range(LANES))))

    def at_least(self, values: Any, least: Any) -> Any:
        return self.builder.fcmp_ordered(">=", values, least)

    def sum_up(self, count: Any, sums: Any | None, term: Callable[[Any], Any]) -> Any:
        """The float64 sum of `term` over all vectors; each block's sum goes to `sums`."""
        b, slots, total = self.builder, self.accumulators(_UNROLL), cgutils.alloca_once(self.builder, _F64)
        b.store(ir.Constant(_F64, 0.0), total)
        with self.blocks(count) as (start, end):
            self.reset(slots, 0.0)
            with self.strides(start, end) as places:
                for slot, i in zip(slots, places, strict=True):
                    b.store(b.fadd(b.load(slot), term(i)), slot)
            in_block = b.fpext(self.total(self.combined(slots, b.fadd)), _F64)
            b.store(b.fadd(b.load(total), in_block), total)
            if sums is not None:
                place = b.add(sums, b.mul(b.sdiv(start, number(BLOCK)), number(8)))
                b.store(in_block, b.inttoptr(place, _F64.as_pointer()))
        return b.load(total)

    def squeeze(self, count: Any, choose: Callable[[Any], tuple[Any, list[Any]]], targets: list[Any]) -> Any:
        """Store the chosen elements one after another; returns how many. `choose` gives a mask and a column for each
        target.

        A target may be the place its column is read from.
        """
        b, found = self.builder, cgutils.alloca_once(self.builder, I64)
        b.store(number(0), found)
        with self.strides(number(0), count) as places:
            chosen = [choose(i) for i in places]
            some = chosen[0][0]
            for mask, _ in chosen[1:]:
                some = b.or_(some, mask)
            some_bits = b.bitcast(some, ir.IntType(LANES))
            with b.if_then(b.icmp_unsigned("!=", some_bits, ir.Constant(ir.IntType(LANES), 0))):
                for mask, columns in chosen:
                    self._append(columns, mask, targets, found)
        return b.load(found)

    def _append(self, columns: list[Any], mask: Any, targets: list[Any], found: Any) -> None:
        """Append the columns' chosen lanes at `found`, and move it on."""
        b = self.builder
        if _has("avx2") and not _has("avx512f"):
            self._append_by_table(columns, mask, targets, found)
            return
        for column, target in zip(columns, targets, strict=True):
            kind = "f32" if column.type == self.type else "i32"
            name = f"llvm.experimental.vector.compress.v{self.lanes}{kind}"
            compressed = self.call(name, column.type, [column, mask, ir.Constant(column.type, ir.Undefined)])
            place = b.add(target, b.mul(b.load(found), number(4)))
            b.store(compressed, b.inttoptr(place, column.type.as_pointer()), align=4)
        bits = b.zext(b.bitcast(mask, ir.IntType(LANES)), I64)
        b.store(b.add(b.load(found), self.call("llvm.ctpop.i64", I64, [bits])), found)

    def _append_by_table(self, columns: list[Any], mask: Any, targets: list[Any], found: Any) -> None:
        """As `_append`, eight lanes at a time: AVX2 permutes them by a table's entry for each mask."""
        b, eight = self.builder, ir.VectorType(I32, 8)
        bits, undefined = b.bitcast(mask, ir.IntType(LANES)), ir.Constant(self.whole, ir.Undefined)
        for first in (0, 8):
            byte = b.zext(b.trunc(b.lshr(bits, ir.Constant(bits.type, first)), ir.IntType(8)), I64)
            order = b.load(b.gep(self._table(eight), [number(0), byte]), align=32)
            lanes = ir.Constant(eight, list(range(first, first + 8)))
            for column, target in zip(columns, targets, strict=True):
                half = b.shuffle_vector(b.bitcast(column, self.whole), undefined, lanes)
                moved = self.call("llvm.x86.avx2.permd", eight, [half, order])
                place = b.add(target, b.mul(b.load(found), number(4)))
                b.store(moved, b.inttoptr(place, eight.as_pointer()), align=4)
            b.store(b.add(b.load(found), self.call("llvm.ctpop.i64", I64, [byte])), found)

    def _table(self, eight: Any) -> Any:
        """A table with a row for each mask of eight lanes: the chosen lanes first, then any."""
        name, module = "millrace_chosen_lanes", self.builder.module
        if name not in module.globals:
            chosen = [[lane for lane in range(8) if mask >> lane & 1] for mask in range(256)]
            rows = [ir.Constant(eight, lanes + [0] * (8 - len(lanes))) for lanes in chosen]
            table = ir.GlobalVariable(module, ir.ArrayType(eight, 256), name)
            table.initializer = ir.Constant(table.value_type, rows)
            table.linkage, table.global_constant, table.align = "internal", True, 32
        return module.globals[name]

    def pad(self, target: Any, count: Any, value: float) -> None:
        for u in range(_UNROLL):
            self.store(self.constant(value), target, self.builder.add(count, number(LANES * u)))

    def weight(self, values: Any, best: Any, factor: Any) -> Any:
        """2 to (values - best) * factor; 0 below the normal numbers."""
        b = self.builder
        power = b.fmul(b.fsub(values, best), factor)
        normal = b.fcmp_ordered(">", power, self.constant(LOWEST_EXPONENT))
        return b.select(normal, self.exp2(power), self.constant(0.0))


@inlined(types.float32, literals=1)
def note_maxima(b: Any, source: Any, target: Any, count: Any, maxima: Any, copies: int) -> Any:
    """The greatest of source[:count], NaN if one is; maxima gets 16 of each block, each of 64 elements.

    `count` is a multiple of 1024. The row is copied to `target` on the way where `copies` is not 0.
    """
    rows = _Rows(b)
    slots, greatest = rows.accumulators(_UNROLL), rows.accumulators(1)
    rows.reset(greatest, -_INFINITY)
    with rows.blocks(count) as (start, end):
        rows.reset(slots, -_INFINITY)
        with rows.strides(start, end) as places:
            for slot, i in zip(slots, places, strict=True):
                values = rows.load(source, i)
                b.store(rows.maximum(values, b.load(slot)), slot)
                if copies:
                    rows.store(values, target, i)
        most = rows.combined(slots, rows.maximum)
        rows.store(most, maxima, b.sdiv(start, number(BLOCK // LANES)))
        b.store(rows.maximum(most, b.load(greatest[0])), greatest[0])
    rows.pad(maxima, b.sdiv(count, number(BLOCK // LANES)), -_INFINITY)
    return rows.call(f"llvm.vector.reduce.fmaximum.v{LANES}f32", F32, [b.load(greatest[0])])


@inlined(types.float64, others=_TWO_FLOATS)
def sum_weights(b: Any, values: Any, count: Any, sums: Any, best: Any, factor: Any) -> Any:
    """The sum of 2**((values - best) * factor); each block's sum goes to `sums`."""
    rows = _Rows(b)
    most, scale = rows.broadcast(best), rows.broadcast(factor)
    return rows.sum_up(count, sums, lambda i: rows.weight(rows.load(values, i), most, scale))


@inlined(types.float64, others=_TWO_FLOATS)
def weigh(b: Any, values: Any, weights: Any, count: Any, best: Any, factor: Any) -> Any:
    """weights[:count] = 2**((values - best) * factor); their sum."""
    rows = _Rows(b)
    most, scale = rows.broadcast(best), rows.broadcast(factor)

    def term(i: Any) -> Any:
        weight = rows.weight(rows.load(values, i), most, scale)
        rows.store(weight, weights, i)
        return weight

    return rows.sum_up(count, None, term)


@inlined(types.float64)
def sum_blocks(b: Any, weights: Any, count: Any, sums: Any) -> Any:
    """The sum of weights[:count]; each block's sum goes to `sums`."""
    rows = _Rows(b)
    return rows.sum_up(count, sums, lambda i: rows.load(weights, i))


@inlined(types.float64, others=_FLOAT)
def sum_from(b: Any, values: Any, weights: Any, count: Any, least: Any) -> Any:
    """The sum of the weights whose values are at least `least`."""
    rows = _Rows(b)
    bound = rows.broadcast(least)

    def term(i: Any) -> Any:
        return b.select(rows.at_least(rows.load(values, i), bound), rows.load(weights, i), rows.constant(0.0))

    return rows.sum_up(count, None, term)


@inlined(types.int64, others=_FLOAT)
def gather(b: Any, values: Any, weights: Any, count: Any, out: Any, out_weights: Any, ids: Any, least: Any) -> Any:
    """Gather the values of at least `least` in order, their weights and their places (int32); returns how many."""
    rows = _Rows(b)
    bound = rows.broadcast(least)

    def choose(i: Any) -> tuple[Any, list[Any]]:
        loaded = rows.load(values, i)
        return rows.at_least(loaded, bound), [loaded, rows.load(weights, i), rows.numbers(i)]

    found = rows.squeeze(count, choose, [out, out_weights, ids])
    rows.pad(out, found, -_INFINITY)
    rows.pad(out_weights, found, 0.0)
    return found


@inlined(types.int64, others=_TWO_FLOATS)
def keep(b: Any, values: Any, weights: Any, count: Any, out: Any, out_weights: Any, low: Any, high: Any) -> Any:
    """Keep the values low <= v < high in order, and their weights; returns how many. May work in place."""
    rows = _Rows(b)
    least, limit = rows.broadcast(low), rows.broadcast(high)

    def choose(i: Any) -> tuple[Any, list[Any]]:
        loaded = rows.load(values, i)
        inside = b.and_(rows.at_least(loaded, least), b.fcmp_ordered("<", loaded, limit))
        return inside, [loaded, rows.load(weights, i)]

    found = rows.squeeze(count, choose, [out, out_weights])
    rows.pad(out, found, -_INFINITY)
    rows.pad(out_weights, found, 0.0)
    return found


@inlined(types.UniTuple(types.float32, 2))
def span(b: Any, values: Any, count: Any) -> Any:
    """The least above -infinity and the greatest."""
    rows = _Rows(b)
    low, high = rows.accumulators(_UNROLL), rows.accumulators(_UNROLL)
    rows.reset(low, _INFINITY)
    rows.reset(high, -_INFINITY)
    with rows.strides(number(0), count) as places:
        for least, most, i in zip(low, high, places, strict=True):
            loaded = rows.load(values, i)
            counts = b.fcmp_ordered(">", loaded, rows.constant(-_INFINITY))
            b.store(rows.min(b.select(counts, loaded, rows.constant(_INFINITY)), b.load(least)), least)
            b.store(rows.max(loaded, b.load(most)), most)
    least = rows.call(f"llvm.vector.reduce.fmin.v{LANES}f32", F32, [rows.combined(low, rows.min)])
    return cgutils.pack_array(b, [least, rows.largest(rows.combined(high, rows.max))])


@inlined(types.void, others=_FLOAT)
def drop_below(b: Any, ranks: Any, weights: Any, count: Any, least: Any) -> None:
    """Set weights to 0 where ranks are below `least`."""
    rows = _Rows(b)
    bound = rows.broadcast(least)
    with rows.strides(number(0), count) as places:
        for i in places:
            stays = rows.at_least(rows.load(ranks, i), bound)
            rows.store(b.select(stays, rows.load(weights, i), rows.constant(0.0)), weights, i)


@inlined(types.void, others=_FLOAT)
def fill(b: Any, target: Any, count: Any, value: Any) -> None:
    """target[:count] = value, up to the end of the last stride."""
    rows = _Rows(b)
    with rows.strides(number(0), count) as places:
        for i in places:
            rows.store(rows.broadcast(value), target, i)


@inlined(types.void)
def rule_out(b: Any, target: Any, mask: Any, words: Any) -> None:
    """target[i] = -infinity where bit i of the mask, of so many uint32, is 0."""
    rows, half = _Rows(b), ir.IntType(LANES)
    with cgutils.for_range_slice(b, number(0), b.mul(words, number(2 * LANES)), number(2 * LANES)) as (start, _):
        for place in (start, b.add(start, number(LANES))):
            address = b.add(mask, b.sdiv(place, number(8)))
            bits = b.bitcast(b.load(b.inttoptr(address, half.as_pointer()), align=2), rows.bits)
            rows.store(b.select(bits, rows.load(target, place), rows.constant(-_INFINITY)), target, place)


@inlined(types.float64)
def weighted_sum(b: Any, values: Any, weights: Any, count: Any) -> Any:
    """The sum of values times weights, in float64, over those that have a weight."""
    rows = _Rows(b)
    wide = ir.VectorType(_F64, LANES)
    total = cgutils.alloca_once_value(b, ir.Constant(wide, [0.0] * LANES))
    with rows.strides(number(0), count) as places:
        for i in places:
            weight = rows.load(weights, i)
            counts = b.fcmp_ordered(">", weight, rows.constant(0.0))
            value = b.select(counts, rows.load(values, i), rows.constant(0.0))
            product = b.fmul(b.fpext(value, wide), b.fpext(weight, wide))
            b.store(b.fadd(b.load(total), product), total)
    name = f"llvm.vector.reduce.fadd.v{LANES}f64"
    return rows.call(name, _F64, [ir.Constant(_F64, 0.0), b.load(total)], ("reassoc",))


@inlined(types.void, others=_DOUBLE)
def rank_by_distance(b: Any, values: Any, count: Any, mean: Any) -> None:
    """Replace values by -|values - mean|."""
    rows = _Rows(b)
    wide = ir.VectorType(_F64, LANES)
    first = b.insert_element(ir.Constant(wide, ir.Undefined), mean, ir.Constant(I32, 0))
    middle = b.shuffle_vector(first, ir.Constant(wide, ir.Undefined), rows.ints(0))
    with rows.strides(number(0), count) as places:
        for i in places:
            distance = b.fsub(b.fpext(rows.load(values, i), wide), middle)
            size = rows.call(f"llvm.fabs.v{LANES}f64", wide, [distance])
            rows.store(b.fneg(b.fptrunc(size, rows.type)), values, i)


@inlined(types.void)
def copy(b: Any, source: Any, target: Any, count: Any) -> None:
    """target[:count] = source[:count], four bytes each."""
    word = I32.as_pointer()
    cgutils.raw_memcpy(b, b.inttoptr(target, word), b.inttoptr(source, word), count, 4)


@inlined(types.float32)
def load_float(b: Any, base: Any, index: Any) -> Any:
    """The float32 at base[index]."""
    return b.load(b.inttoptr(b.add(base, b.mul(index, number(4))), F32.as_pointer()))


@inlined(types.void, others=_FLOAT)
def store_float(b: Any, base: Any, index: Any, value: Any) -> None:
    """base[index] = value."""
    b.store(value, b.inttoptr(b.add(base, b.mul(index, number(4))), F32.as_pointer()))


@inlined(types.float64)
def load_double(b: Any, base: Any, index: Any) -> Any:
    """The float64 at base[index]."""
    return b.load(b.inttoptr(b.add(base, b.mul(index, number(8))), _F64.as_pointer()))


@inlined(types.void)
def store_int32(b: Any, base: Any, index: Any, value: Any) -> None:
    """base[index] = value."""
    b.store(b.trunc(value, I32), b.inttoptr(b.add(base, b.mul(index, number(4))), I32.as_pointer()))


@inlined(types.void)
def store_int64(b: Any, base: Any, index: Any, value: Any) -> None:
    """base[index] = value."""
    b.store(value, b.inttoptr(b.add(base, b.mul(index, number(8))), I64.as_pointer()))
