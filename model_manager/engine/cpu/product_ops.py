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
_STEP_LINES = _STEP_BYTES // 64
_WIDENED_IN_VECTORS = 2
"""With AVX-512 so few rows are widened in vectors: that takes fewer instructions, but uses the ports that multiply."""
_STEPS_AHEAD = 16
"""Steps (3 KiB) that a panel is asked for ahead of its use, where several are read at once."""
_UPPER_HALF = -0x10000
_ZERO_POINTS = -0x7F7F7F80
"""128 in each byte: what its factor is more than it stands for."""


class _Factors(Tile):
    """Factors as vectors of float32, of `halves` of each word."""

    most_rows: int
    """Rows that are computed together."""
    most_sums: int
    """Sums that fit the registers, beside the factors."""

    def __init__(self, builder: Any, fmt: int, lanes: int, *, widens: bool) -> None:
        super().__init__(builder, fmt, lanes)
        self.halves = 2 if widens else 1

    def passes(self, rows: int, panels: int) -> Iterator[tuple[range, list[tuple[int, int]]]]:
        """Rows, and vectors of columns (panel, vector), whose sums are kept in registers together."""
        columns = [(panel, vector) for panel in range(panels) for vector in range(PANEL // self.lanes)]
        for row in range(0, rows, self.most_rows):
            some = range(row, min(row + self.most_rows, rows))
            at_once = self.most_sums // len(some)
            for first in range(0, len(columns), at_once):
                yield some, columns[first : first + at_once]

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

    most_rows, most_sums = 8, 24

    def __init__(self, builder: Any, fmt: int, rows: int, *, widens: bool) -> None:
        super().__init__(builder, fmt, LANES, widens=widens)
        self._few = rows <= _WIDENED_IN_VECTORS

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

    most_rows, most_sums = 4, 12

    def __init__(self, builder: Any, fmt: int) -> None:
        super().__init__(builder, fmt, LANES // 2, widens=fmt == Format.BFLOAT16)
        self._bytes = ir.VectorType(ir.IntType(8), 4 * self.lanes)
        self._pairs = ir.VectorType(I16, 2 * self.lanes)

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
    t = _factors(b, fmt, unit, rows)
    for turn, (some, columns) in enumerate(t.passes(rows, 1)):
        sums = _Sums(t, left, left_stride, [right], [tile], some, columns)
        with cgutils.for_range_slice(b, number(0), steps, number(1)) as (k, _):
            if not turn:
                _ask_for_lines(b, b.add(ahead, b.mul(k, pace)), pace, lines)
            sums.add(k)
        sums.store()


@inlined(types.void, literals=4)
def multiply_panels(
    b: Any, left: Any, left_stride: Any, right: Any, near: Any, far: Any, steps: Any,
    tile: Any, near_tiles: Any, far_tiles: Any, ahead: Any,
    rows: int, pairs: int, fmt: int, unit: int,
) -> None:  # fmt: skip
    """As `multiply_tile`, of several panels at once: so memory is read at several places, which is faster than at one.

    They are one or two `pairs`, `near` bytes apart, of panels `far` bytes apart; their tiles lie `near_tiles` and
    `far_tiles` bytes apart. Each panel's steps are asked for some steps before they are read, and near its end the
    first ones of the panels at `ahead`, which lie likewise.
    """
    t = _factors(b, fmt, unit, rows)
    places = [(n, f) for f in range(2) for n in range(pairs)]

    def at(start: Any, first: Any, second: Any) -> list[Any]:
        return [b.add(start, b.add(b.mul(first, number(n)), b.mul(second, number(f)))) for n, f in places]

    rights, nexts, tiles = at(right, near, far), at(ahead, near, far), at(tile, near_tiles, far_tiles)
    for some, columns in t.passes(rows, len(places)):
        sums = _Sums(t, left, left_stride, rights, tiles, some, columns)
        with cgutils.for_range_slice(b, number(0), steps, number(1)) as (k, _):
            later = b.add(k, number(_STEPS_AHEAD))
            beyond = b.sub(later, steps)
            is_over = b.icmp_signed(">=", beyond, number(0))
            for panel in [panel for panel, vector in columns if vector == 0]:
                asked, step = b.select(is_over, nexts[panel], rights[panel]), b.select(is_over, beyond, later)
                place = b.add(asked, b.mul(step, number(_STEP_BYTES)))
                _ask_for_lines(b, place, number(_STEP_BYTES), _STEP_LINES)
            sums.add(k)
        sums.store()


def _factors(b: Any, fmt: int, unit: int, rows: int) -> _Wide | _Narrow:
    return _Narrow(b, fmt) if unit == Unit.AVX2 else _Wide(b, fmt, rows, widens=unit == Unit.WIDENED)


class _Sums:
    """The sums of some rows and vectors of columns, in registers until they are stored in the panels' tiles."""

    def __init__(
        self,
        t: _Wide | _Narrow,
        left: Any,
        left_stride: Any,
        rights: list[Any],
        tiles: list[Any],
        rows: range,
        columns: list[tuple[int, int]],
    ) -> None:
        b = t.builder
        self._t, self._rights, self._tiles, self._columns = t, rights, tiles, columns
        self._lefts = {r: b.add(left, b.mul(left_stride, number(r))) for r in rows}
        self._slots = {(r, *column): cgutils.alloca_once(b, t.sum_type) for r in rows for column in columns}
        for slot in self._slots.values():
            b.store(t.zero(), slot)

    def add(self, step: Any) -> None:
        """Add the products of one word of each row with each panel's words of that step."""
        t, b = self._t, self._t.builder
        bases = {panel: b.add(self._rights[panel], b.mul(step, number(_STEP_BYTES))) for panel, _ in self._columns}
        offset = b.mul(step, number(4))
        for half in range(t.halves):
            if half:  # read again: kept words would take the sums' registers
                bases = {panel: _unknown(b, base) for panel, base in bases.items()}
            columns = {
                (panel, v): t.right(b.add(bases[panel], number(4 * t.lanes * v)), half) for panel, v in self._columns
            }
            for r, start in self._lefts.items():
                row = t.left(b.add(start, offset), half)
                for column, words in columns.items():
                    slot = self._slots[r, *column]
                    b.store(t.multiply_add(b.load(slot), row, words), slot)

    def store(self) -> None:
        """Write the sums to the panels' tiles."""
        t, b = self._t, self._t.builder
        for (r, panel, v), slot in self._slots.items():
            place = b.add(self._tiles[panel], number(4 * (PANEL * r + t.lanes * v)))
            b.store(b.load(slot), b.inttoptr(place, t.sum_type.as_pointer()), align=4 * t.lanes)


def _ask_for_lines(b: Any, address: Any, pace: Any, lines: int) -> None:
    for line in range(lines):
        ask_for(b, b.add(address, b.sdiv(b.mul(pace, number(line)), number(lines))))


def _unknown(b: Any, value: Any) -> Any:
    """The same int64, which the compiler cannot tell from another."""
    return b.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [value], side_effect=False)
