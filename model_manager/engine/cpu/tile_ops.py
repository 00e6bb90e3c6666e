"""Products by a processor's matrix unit (AMX): tiles of 16 rows, each of 64 bytes, in registers of their own.

A packed panel is laid out as the unit takes it: 16 steps of a panel's 16 columns are one tile. So the vector kernels
and these read the same weights. Knows neither layers nor threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from ..interface import Longs
from .matrix_ops import LANES, PANEL, TILE_STEPS, Format, Unit
from .vector_ops import ask_for, inlined, number

BLOCK_ROWS = 32
"""Rows of a block: two tiles; with three vectors of columns that makes six of the eight registers."""
_TILE_ROWS = BLOCK_ROWS // 2
_VECTORS = PANEL // LANES
_LEFT, _RIGHT = 6, 7
_LINE = 64
_INSTRUCTIONS = {Format.INT8: "llvm.x86.tdpbusd", Format.BFLOAT16: "llvm.x86.tdpbf16ps"}
_I8 = ir.IntType(8)


def tile_shapes() -> Longs:
    """What `configure_tiles` reads (64 bytes): all eight registers hold 16 rows of 64 bytes."""
    shapes = np.zeros(_LINE, np.uint8)
    shapes[0] = 1  # the palette
    shapes[16:32].view(np.uint16)[:] = _LINE
    shapes[48:56] = _TILE_ROWS
    return shapes.view(np.int64)


class _Tiles:
    """Emits instructions for tiles; a register's number is part of its instruction."""

    def __init__(self, builder: Any, fmt: int) -> None:
        self.builder = builder
        self._multiply = _INSTRUCTIONS[Format(fmt)]

    def clear(self, register: int) -> None:
        _call(self.builder, "llvm.x86.tilezero", [_register(register)])

    def load(self, register: int, address: Any, stride: Any) -> None:
        _call(self.builder, "llvm.x86.tileloadd64", [_register(register), _pointer(self.builder, address), stride])

    def store(self, register: int, address: Any, stride: Any) -> None:
        _call(self.builder, "llvm.x86.tilestored64", [_register(register), _pointer(self.builder, address), stride])

    def multiply_add(self, total: int, left: int, right: int) -> None:
        _call(self.builder, self._multiply, [_register(total), _register(left), _register(right)])


@inlined(types.void, literals=1)
def configure_tiles(b: Any, shapes: Any, unit: int) -> None:
    """Give this thread's registers the shapes (64 bytes) at that address; nothing for another unit."""
    if unit == Unit.TILES:
        _call(b, "llvm.x86.ldtilecfg", [_pointer(b, shapes)])


@inlined(types.void, literals=1)
def release_tiles(b: Any, unit: int) -> None:
    """Give the registers up, as a thread without them is cheaper to switch; nothing for another unit."""
    if unit == Unit.TILES:
        _call(b, "llvm.x86.tilerelease", [])


@inlined(types.void, literals=4)
def multiply_block(
    b: Any, left: Any, left_stride: Any, right: Any, steps: Any, block: Any, ahead: Any, pace: Any,
    tiles: int, shares: int, fmt: int, unit: int,
) -> None:  # fmt: skip
    """block[: 16 * tiles, :PANEL] (4 bytes an element) = left times right, over `steps` (a multiple of `TILE_STEPS`).

    `tiles` is 1 or 2. Each step also asks for the next `pace` bytes from `ahead` on: a panel's bytes over
    `shares`. Emits nothing for another unit, as a processor without the unit cannot even compile the instructions.
    """
    if unit != Unit.TILES:
        return
    t = _Tiles(b, fmt)
    for register in range(tiles * _VECTORS):
        t.clear(register)
    starts = [b.add(left, b.mul(left_stride, number(_TILE_ROWS * tile))) for tile in range(tiles)]
    with cgutils.for_range_slice(b, number(0), steps, number(TILE_STEPS)) as (k, _):
        base = b.add(right, b.mul(k, number(4 * PANEL)))
        asked = b.add(ahead, b.mul(k, pace))
        for line in range(4 * PANEL * TILE_STEPS // (_LINE * shares)):
            ask_for(b, b.add(asked, number(_LINE * line)))
        for tile in range(tiles):
            t.load(_LEFT, b.add(starts[tile], b.mul(k, number(4))), left_stride)
            for v in range(_VECTORS):
                t.load(_RIGHT, b.add(base, number(4 * LANES * v)), number(4 * PANEL))
                t.multiply_add(tile * _VECTORS + v, _LEFT, _RIGHT)
    for tile in range(tiles):
        for v in range(_VECTORS):
            place = b.add(block, number(4 * (PANEL * _TILE_ROWS * tile + LANES * v)))
            t.store(tile * _VECTORS + v, place, number(4 * PANEL))


def _register(number_: int) -> Any:
    return ir.Constant(_I8, number_)


def _pointer(b: Any, address: Any) -> Any:
    return b.inttoptr(address, _I8.as_pointer())


def _call(b: Any, name: str, arguments: list[Any]) -> None:
    signature = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    b.call(cgutils.get_or_insert_function(b.module, signature, name), arguments)
