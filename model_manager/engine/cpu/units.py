"""Which instructions of this processor compute a product of some format."""

from __future__ import annotations

import ctypes
import functools

import torch
from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]

from .matrix_ops import TILE_STEPS, Format, Unit

_ARCH_PRCTL, _ASK_FOR_FEATURE, _TILE_DATA = 158, 0x1023, 18
"""Linux on x86-64: the number of the system call, its code, and the code of the registers' contents."""
_AVX512 = {Format.INT8: "avx512_vnni", Format.BFLOAT16: "avx512_bf16", Format.FLOAT32: "avx512_f"}
_TILES = {Format.INT8: "amx_int8", Format.BFLOAT16: "amx_bf16"}


def unit_of(fmt: Format, steps: int) -> Unit | None:
    """The fastest unit here for factors of that format and so many steps; None on a processor without AVX2."""
    if steps % TILE_STEPS == 0 and fmt in _TILES and _has("amx_tile", _TILES[fmt]) and _may_use_tiles():
        return Unit.TILES
    if _has("avx512_f", _AVX512[fmt]) and (fmt != Format.BFLOAT16 or _multiplies_bfloat16_fast()):
        return Unit.AVX512
    if fmt == Format.BFLOAT16 and _has("avx512_f"):
        return Unit.WIDENED
    return Unit.AVX2 if _has("avx2", "fma3") else None


@functools.cache
def _multiplies_bfloat16_fast() -> bool:
    """Whether VDPBF16PS takes no longer than the two FMAs of float32 in its place: so on AMD's Zen. On Intel's
    processors it takes twice as long.
    """
    return not get_host_cpu_name().startswith("znver")


def _has(*names: str) -> bool:
    has = torch.cpu.get_capabilities()
    return all(has.get(name, False) for name in names)


@functools.cache
def _may_use_tiles() -> bool:
    """Whether this process may use AMX. Linux wants to be asked: its registers make a thread's state 8 KiB larger."""
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK_FOR_FEATURE, _TILE_DATA) == 0)
