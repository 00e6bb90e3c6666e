"""A step's matrix products: their formats, and vector instructions for what is done to their rows.

A product has the formats of `Format`. Whatever the format, one step along the inner dimension takes 4 bytes of each
row of the left side (1 float32, 2 bfloat16 or 4 int8) and `PANEL` times 4 bytes of the right side, so that the same
loop serves all three. Knows neither layers nor threads.
"""

from __future__ import annotations

import enum
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from .vector_ops import I32, Vectors, inlined, number

PANEL = 48
"""Columns of a tile: three vectors of 16."""
LANES = 16
TILE_STEPS = 16
"""Steps along the inner dimension that a tile of the matrix unit holds."""
_VECTORS = PANEL // LANES
_LINE = 64
_LOG2_E = 1.4426950408889634
_HIGHEST_EXPONENT = 126.0
_GELU_SCALE, _GELU_CUBE = 0.7978845608028654, 0.044715


class Format(enum.IntEnum):
    """What a product's factors are, by the bytes of an element."""

    INT8 = 1
    """Left: unsigned, 128 more than what it stands for, a scale a row; right: signed, a scale a column."""
    BFLOAT16 = 2
    FLOAT32 = 4


class Unit(enum.IntEnum):
    """Instructions that compute a product."""

    AVX2 = 0
    """Vectors of 8, for any format: what has no instruction of its own is widened first."""
    WIDENED = 1
    """AVX-512, for bfloat16 that is widened first."""
    AVX512 = 2
    TILES = 3
    """The matrix unit (AMX); few rows of int8 by AVX-512."""


class Epilogue(enum.IntEnum):
    """What becomes of a product's rows."""

    STORE = 0
    RELU = 1
    GELU_TANH = 2
    ADD = 3
    """The product is added to the output."""
    SWIGLU = 4
    """silu(gate) times up, of two products with the same left side."""
    GEGLU_TANH = 5


class Tile(Vectors):
    """Emits the arithmetic of products, in vectors of `lanes` columns."""

    def __init__(self, builder: Any, fmt: int, lanes: int = LANES) -> None:
        super().__init__(builder, lanes)
        self.fmt = fmt
        self.words = ir.VectorType(I32, lanes)
        self.sum_type = self.words if fmt == Format.INT8 else self.type

    def zero(self) -> Any:
        element = 0 if self.fmt == Format.INT8 else 0.0
        return ir.Constant(self.sum_type, [element] * self.lanes)

    def load_words(self, address: Any) -> Any:
        return self.builder.load(self.builder.inttoptr(address, self.words.as_pointer()), align=4 * self.lanes)

    def spread_word(self, address: Any) -> Any:
        return self.spread_int(self.builder.load(self.builder.inttoptr(address, I32.as_pointer()), align=4))

    def load_sums(self, address: Any) -> Any:
        return self.builder.load(self.builder.inttoptr(address, self.sum_type.as_pointer()), align=_LINE)

    def load_floats(self, address: Any) -> Any:
        return self.builder.load(self.builder.inttoptr(address, self.type.as_pointer()), align=4)

    def sigmoid(self, x: Any) -> Any:
        """1 / (1 + e**-x)."""
        power = self.builder.fmul(x, self.constant(-_LOG2_E))
        power = self.builder.select(
            self.builder.fcmp_ordered(">", power, self.constant(_HIGHEST_EXPONENT)),
            self.constant(_HIGHEST_EXPONENT),
            power,
        )
        one = self.constant(1.0)
        return self.builder.fdiv(one, self.builder.fadd(one, self.exp2(power)))

    def silu(self, x: Any) -> Any:
        return self.builder.fmul(x, self.sigmoid(x))

    def gelu_tanh(self, x: Any) -> Any:
        """X / 2 (1 + tanh(u)) is x sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x**3)."""
        square = self.builder.fmul(x, x)
        inner = self.fma(self.fma(square, self.constant(_GELU_CUBE), self.constant(1.0)), x, self.constant(0.0))
        return self.builder.fmul(x, self.sigmoid(self.builder.fmul(inner, self.constant(2.0 * _GELU_SCALE))))


@inlined(types.void, literals=4)
def finish_row(
    b: Any, tile: Any, other: Any, row_scale: Any, scales: Any, offsets: Any, bias: Any, gap: Any, out: Any,
    fmt: int, epilogue: int, itemsize: int, unit: int,
) -> None:  # fmt: skip
    """out[:PANEL] from a row of a tile: offset and scaled (int8 only), biased, then as `epilogue` says.

    `tile`, `scales`, `offsets` and `bias` are addresses at the tile's first column. A gated epilogue has a second
    product: its addresses lie `gap` bytes on, and its tile at `other`.
    """
    t, memory = Tile(b, fmt), Vectors(b, LANES, itemsize)
    row_factor = t.load_broadcast(row_scale, number(0)) if fmt == Format.INT8 else None
    for v in range(_VECTORS):
        at = number(4 * LANES * v)

        def value(source: Any, shift: Any, at: Any = at) -> Any:
            total = t.load_sums(b.add(source, at))
            place = b.add(shift, at)
            if fmt == Format.INT8:
                if unit != Unit.AVX2:  # which takes the left side's zero point off each factor
                    whole = b.inttoptr(b.add(offsets, place), t.words.as_pointer())
                    total = b.sub(total, b.load(whole, align=4))
                total = b.sitofp(total, t.type)
                total = b.fmul(total, b.fmul(row_factor, t.load_floats(b.add(scales, place))))
            return b.fadd(total, t.load_floats(b.add(bias, place)))

        result = value(tile, number(0))
        if epilogue == Epilogue.RELU:  # NaN stays
            result = b.select(b.fcmp_ordered("<", result, t.constant(0.0)), t.constant(0.0), result)
        elif epilogue == Epilogue.GELU_TANH:
            result = t.gelu_tanh(result)
        elif epilogue == Epilogue.ADD:
            result = b.fadd(result, memory.load(out, number(LANES * v)))
        elif epilogue == Epilogue.SWIGLU:
            result = b.fmul(t.silu(result), value(other, gap))
        elif epilogue == Epilogue.GEGLU_TANH:
            result = b.fmul(t.gelu_tanh(result), value(other, gap))
        memory.store(result, out, number(LANES * v))
