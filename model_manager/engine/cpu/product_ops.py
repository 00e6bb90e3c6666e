"""The inner loop of a step's products, in vector instructions: AVX-512's own for each format, or AVX2's.

AVX2 multiplies float32 alone. bfloat16 is widened, one half of each word after the other, and so it is with AVX-512
where the processor's own instruction is slower (units.py); int8 is multiplied in pairs whose sums fit 16 bits, as no
factor is beyond 127. Knows neither layers nor threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from .matrix_ops import LANES, PANEL, Format, Tile, Unit
from .vector_ops import I16, I32, I64, ask_for, inlined, number

_STEP_BYTES = 4 * PANEL
_FEW_ROWS, _GROUP_ROWS, _GROUP_VECTORS = 2, 4, 3
"""With AVX2 so few rows take a panel's six vectors at once; more rows four at a time, and three vectors. So sums and
factors together fit 16 registers. With AVX-512 so few rows are widened in vectors: that takes fewer instructions, but
uses the ports that multiply.
"""
_UPPER_HALF = -0x10000
_ZERO_POINTS = -0x7F7F7F80
"""128 in each byte: what its factor is more than it stands for."""


class _Factors(Tile):
    """Factors as vectors of float32, of `halves` of each word."""

    def __init__(self, builder: Any, fmt: int, lanes: int, *, widens: bool) -> None:
        super().__init__(builder, fmt, lanes)
        self.halves = 2 if widens else 1

    def widened_left(self, address: Any, half: int) -> Any:
        """A row's bfloat16 there, in all lanes."""
        b = self.builder
        place = b.inttoptr(b.add(address, number(2 * half)), I16.as_pointer())
        return b.bitcast(self.spread_int(b.shl(b.zext(b.load(place, align=2), I32), ir.Constant(I32, 16))), self.type)

    def widened(self, words: Any, half: int) -> Any:
        """The bfloat16 in one half of each word."""
        b = self.builder
        return b.bitcast(b.and_(words, self.ints(_UPPER_HALF)) if half else b.shl(words, self.ints(16)), self.type)


class _Wide(_Factors):
    """AVX-512: one instruction a word, named after its format, or two for bfloat16 that is widened."""

    def __init__(self, builder: Any, fmt: int, rows: int, *, widens: bool) -> None:
        super().__init__(builder, fmt, LANES, widens=widens)
        self._few = rows <= _FEW_ROWS

    def passes(self, rows: int) -> Iterator[tuple[range, range]]:
        """Rows and vectors of columns whose sums are kept in registers together."""
        yield range(rows), range(PANEL // LANES)

    def left(self, address: Any, half: int) -> Any:
        """A row's word there as `multiply_add` takes it."""
        if self.halves == 2 and not self._few:
            return self.widened_left(address, half)
        words = self.spread_word(address)
        return self.widened(words, half) if self.halves == 2 else words

    def right(self, address: Any, half: int) -> Any:
        """A vector's words there, likewise."""
        words = self.load_words(address)
        return self.widened(words, half) if self.halves == 2 else words

    def multiply_add(self, total: Any, left: Any, right: Any) -> Any:
        if self.fmt == Format.INT8:
            return self.call("llvm.x86.avx512.vpdpbusd.512", self.words, [total, left, right])
        if self.fmt == Format.BFLOAT16 and self.halves == 1:
            return self.call("llvm.x86.avx512bf16.dpbf16ps.512", self.type, [total, left, right])
        return self.fma(self.builder.bitcast(left, self.type), self.builder.bitcast(right, self.type), total)


class _Narrow(_Factors):
    """AVX2: vectors of half the length, and several instructions a word where it holds more than one factor."""

    def __init__(self, builder: Any, fmt: int) -> None:
        super().__init__(builder, fmt, LANES // 2, widens=fmt == Format.BFLOAT16)
        self._bytes = ir.VectorType(ir.IntType(8), 4 * self.lanes)
        self._pairs = ir.VectorType(I16, 2 * self.lanes)

    def passes(self, rows: int) -> Iterator[tuple[range, range]]:
        """As with AVX-512."""
        vectors = PANEL // self.lanes
        at_once = vectors if rows <= _FEW_ROWS else _GROUP_VECTORS
        for row in range(0, rows, _GROUP_ROWS):
            for vector in range(0, vectors, at_once):
                yield range(row, min(row + _GROUP_ROWS, rows)), range(vector, vector + at_once)

    def left(self, address: Any, half: int) -> Any:
        """As AVX-512's."""
        b = self.builder
        if self.fmt == Format.INT8:
            return b.bitcast(b.xor(self.spread_word(address), self.ints(_ZERO_POINTS)), self._bytes)
        if self.fmt == Format.FLOAT32:
            return b.bitcast(self.spread_word(address), self.type)
        return self.widened_left(address, half)

    def right(self, address: Any, half: int) -> Any:
        """As AVX-512's; for int8 the factors and their sizes."""
        b, words = self.builder, self.load_words(address)
        if self.fmt == Format.BFLOAT16:
            return self.widened(words, half)
        if self.fmt == Format.FLOAT32:
            return b.bitcast(words, self.type)
        factors = b.bitcast(words, self._bytes)
        keeps_least = ir.Constant(ir.IntType(1), 0)
        return factors, self.call(f"llvm.abs.v{4 * self.lanes}i8", self._bytes, [factors, keeps_least])

    def multiply_add(self, total: Any, left: Any, right: Any) -> Any:
        if self.fmt != Format.INT8:
            return self.fma(left, right, total)
        factors, sizes = right
        signed = self.call("llvm.x86.avx2.psign.b", self._bytes, [left, factors])
        pairs = self.call("llvm.x86.avx2.pmadd.ub.sw", self._pairs, [sizes, signed])
        ones = ir.Constant(self._pairs, [1] * 2 * self.lanes)
        return self.builder.add(total, self.call("llvm.x86.avx2.pmadd.wd", self.words, [pairs, ones]))


@inlined(types.void, literals=4)
def multiply_tile(
    b: Any, left: Any, left_stride: Any, right: Any, steps: Any, tile: Any, ahead: Any, pace: Any,
    rows: int, lines: int, fmt: int, unit: int,
) -> None:  # fmt: skip
    """tile[:rows, :PANEL] (4 bytes an element) = left times right, over `steps`.

    Each step also asks for the next `pace` bytes from `ahead` on, so that they come while it computes: `lines` times,
    which is enough for so many cache lines.
    """
    t = _Narrow(b, fmt) if unit == Unit.AVX2 else _Wide(b, fmt, rows, widens=unit == Unit.WIDENED)
    for turn, (some, vectors) in enumerate(t.passes(rows)):
        sums = {(r, v): cgutils.alloca_once(b, t.sum_type) for r in some for v in vectors}
        for slot in sums.values():
            b.store(t.zero(), slot)
        starts = {r: b.add(left, b.mul(left_stride, number(r))) for r in some}
        with cgutils.for_range_slice(b, number(0), steps, number(1)) as (k, _):
            if not turn:
                _ask_for_lines(b, b.add(ahead, b.mul(k, pace)), pace, lines)
            _add_step(t, starts, b.add(right, b.mul(k, number(_STEP_BYTES))), b.mul(k, number(4)), sums)
        for (r, v), slot in sums.items():
            place = b.add(tile, number(4 * (PANEL * r + t.lanes * v)))
            b.store(b.load(slot), b.inttoptr(place, t.sum_type.as_pointer()), align=4 * t.lanes)


def _ask_for_lines(b: Any, address: Any, pace: Any, lines: int) -> None:
    for line in range(lines):
        ask_for(b, b.add(address, b.sdiv(b.mul(pace, number(line)), number(lines))))


def _add_step(
    t: _Wide | _Narrow, starts: dict[int, Any], base: Any, offset: Any, sums: dict[tuple[int, int], Any]
) -> None:
    """Add the products of one word of each row, `offset` bytes from its start, with the panel's words at `base`."""
    b = t.builder
    vectors = sorted({v for _, v in sums})
    for half in range(t.halves):
        if half:  # read again: kept words would take the sums' registers
            base = _unknown(b, base)
        columns = {v: t.right(b.add(base, number(4 * t.lanes * v)), half) for v in vectors}
        for r, start in starts.items():
            row = t.left(b.add(start, offset), half)
            for v in vectors:
                b.store(t.multiply_add(b.load(sums[r, v]), row, columns[v]), sums[r, v])


def _unknown(b: Any, value: Any) -> Any:
    """The same int64, which the compiler cannot tell from another."""
    return b.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [value], side_effect=False)
