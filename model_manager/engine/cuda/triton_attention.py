"""Paged attention on a GPU: the cache, and how the kernels of triton_kernels.py are launched for a step.

Launches depend on the number of tiles and on nothing else that changes from step to step, so that they can be captured
in a graph. Knows no model.
"""

from __future__ import annotations

from typing import Any

import torch

from ..interface import StepInput
from ..paged_attention import AttentionOptions, CacheShape
from . import triton_kernels
from .query_tiles import Tiles, cut_tiles
from .step_buffer import PlacedStep, StepBuffer

_WIDE_ROWS = 64
"""Query rows (tokens x the heads that share a KV head) of a wide tile."""
_QUERY_BYTES = 32 * 2**10
"""Bytes of the queries in a wide tile: with its keys and values they fit the 99 KiB that the smallest GPUs give."""
_LEAST_ROWS = 16
"""The fewest rows that tensor cores multiply."""
_MOST_SPLITS = 32
_PROGRAMS_PER_SM = 4
"""Programs that an SM runs at once: 39 KiB of shared memory, 111 registers a thread (bfloat16, heads of 128)."""
_TILE_BYTES = 16 * 2**10
"""Bytes of the keys that a program holds at once; with as many values it leaves room for others on its SM."""
_MOST_KEYS = 128
_ELEMENTS_OF_FOUR_WARPS = 64 * 128
"""Results that four warps hold in their registers without spilling."""
_OPTIONS = {"enable_fp_fusion": True}
_LEAST_SHARE = 256
"""Tokens of context below which a further split costs more than it saves."""


def supports(shape: CacheShape) -> bool:
    """Whether the kernels take these sizes: a head dimension of 8 n, at most 256, and a cache in full or in int8."""
    known = (torch.float32, torch.bfloat16, torch.float16)
    return (
        shape.dtype in known
        and shape.rounded in (None, torch.int8)
        and shape.head_dim % 8 == 0
        and shape.head_dim <= 256
    )


class TritonAttention:
    """PagedAttention of Triton kernels: one transfer a step, two to four launches a layer, no synchronisation."""

    def __init__(self, shape: CacheShape, device: torch.device, buffer: StepBuffer, num_sms: int) -> None:
        """`num_sms` is how many streaming multiprocessors there are to fill."""
        assert supports(shape), shape
        self._shape = shape
        self._num_sms = num_sms
        self._buffer = buffer
        size = (shape.num_layers, shape.num_blocks, 2, shape.num_kv_heads, shape.block_size, shape.head_dim)
        self._layers = list(torch.empty(size, dtype=shape.stored, device=device).unbind())
        sizes = size[:-1] if shape.rounded else (shape.num_layers, 0)
        self._scales = list(torch.empty(sizes, dtype=torch.float32, device=device).unbind())
        self._group = shape.num_heads // shape.num_kv_heads
        self.narrow_rows = max(_LEAST_ROWS, power_of_two(self._group))
        most = _QUERY_BYTES // (_dim_padded(shape) * shape.dtype.itemsize)
        self.wide_rows = max(min(_WIDE_ROWS, most), self.narrow_rows)
        self._none = torch.empty(0, dtype=torch.float32, device=device)
        self._placed: PlacedStep | None = None

    def begin(self, step: StepInput) -> None:
        self.place(step)

    def place(self, step: StepInput) -> PlacedStep:
        """Bring a step to the device; every layer of it is attended from there."""
        self._placed = self._buffer.place(step, self.tiles(step))
        return self._placed

    def tiles(self, step: StepInput) -> Tiles:
        """The step's queries as the kernels take them."""
        return cut_tiles(step, narrow=self.narrow_rows // self._group, wide=self.wide_rows // self._group)

    def num_splits(self, num_tiles: int) -> int:
        """Programs among which the context of each narrow tile is divided, so that few sequences fill the GPU too.

        A function of the number of tiles, never of the contexts: those are not known when a graph is captured.
        """
        places = _PROGRAMS_PER_SM * self._num_sms
        wanted = places // max(1, num_tiles * self._shape.num_kv_heads)
        useful = self._shape.num_blocks * self._shape.block_size // _LEAST_SHARE
        return 1 << (max(1, min(wanted, useful, _MOST_SPLITS)).bit_length() - 1)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        step = self._placed
        assert step is not None, "attend before begin"
        query = _rows(query)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self._store(layer, _rows(key), _rows(value), step)
        narrow, wide = step.tiles[: step.num_narrow], step.tiles[step.num_narrow :]
        if len(narrow):
            self._attend(layer, query, output, narrow, self.narrow_rows, self.num_splits(len(narrow)), options)
        if len(wide):
            self._attend(layer, query, output, wide, self.wide_rows, 1, options)
        return output

    def _store(self, layer: int, key: torch.Tensor, value: torch.Tensor, step: PlacedStep) -> None:
        shape = self._shape
        triton_kernels.store[(key.shape[0],)](
            key,
            value,
            self._layers[layer],
            self._scales[layer],
            step.slots,
            key.stride(0),
            value.stride(0),
            KV_HEADS=shape.num_kv_heads,
            HEADS_PADDED=power_of_two(shape.num_kv_heads),
            DIM=shape.head_dim,
            DIM_PADDED=_dim_padded(shape),
            BLOCK_SIZE=shape.block_size,
            ROUNDED=shape.rounded is not None,
            **_OPTIONS,
        )

    def _attend(
        self,
        layer: int,
        query: torch.Tensor,
        output: torch.Tensor,
        tiles: torch.Tensor,
        rows: int,
        splits: int,
        options: AttentionOptions,
    ) -> None:
        step, launch = self._placed, self.launch(rows)
        assert step is not None
        kv_heads, dim = self._shape.num_kv_heads, launch["DIM_PADDED"]
        parts = (len(tiles), kv_heads, splits, rows)
        part_outputs = torch.empty((*parts, dim), device=query.device) if splits > 1 else self._none
        part_stats = torch.empty((*parts, 2), device=query.device) if splits > 1 else self._none
        triton_kernels.attend[(len(tiles), kv_heads, splits)](
            query,
            self._layers[layer],
            self._scales[layer],
            output,
            tiles,
            step.positions,
            step.tables,
            step.table_stride,
            self._none if options.sinks is None else options.sinks,
            part_outputs,
            part_stats,
            query.stride(0),
            options.scale,
            options.softcap or 1.0,
            options.window or 0,
            SPLITS=splits,
            CAPPED=options.softcap is not None,
            WINDOWED=options.window is not None,
            HAS_SINKS=options.sinks is not None,
            **launch,
        )
        if splits > 1:
            sizes = {name: launch[name] for name in ("GROUP", "KV_HEADS", "DIM", "DIM_PADDED", "ROWS")}
            triton_kernels.join[(len(tiles), kv_heads)](
                output, tiles, part_outputs, part_stats, SPLITS=splits, **sizes, **_OPTIONS
            )

    def launch(self, rows: int) -> dict[str, Any]:
        """The constants of `attend` for tiles of that many rows, and how the compiler is to lay it out."""
        shape = self._shape
        dim = _dim_padded(shape)
        bytes_held = shape.dtype.itemsize * (
            2 if shape.rounded else 1
        )  # rounded keys are held in both formats for a while
        return {
            "GROUP": self._group,
            "KV_HEADS": shape.num_kv_heads,
            "DIM": shape.head_dim,
            "DIM_PADDED": dim,
            "BLOCK_SIZE": shape.block_size,
            "ROWS": rows,
            "KEYS": max(_LEAST_ROWS, min(_MOST_KEYS, _TILE_BYTES // (dim * bytes_held))),
            "ROUNDED": shape.rounded is not None,
            "PRECISION": "ieee" if shape.dtype == torch.float32 else "tf32",
            "num_warps": 8 if rows * dim > _ELEMENTS_OF_FOUR_WARPS else 4,
            "num_stages": 3,
            **_OPTIONS,
        }


def _rows(states: torch.Tensor) -> torch.Tensor:
    """The same [T, heads, dim] with each token's heads lying together."""
    together = states.stride(2) == 1 and states.stride(1) == states.shape[2]
    return states if together else states.contiguous()


def _dim_padded(shape: CacheShape) -> int:
    return max(_LEAST_ROWS, power_of_two(shape.head_dim))


def power_of_two(number: int) -> int:
    """The least one that is not below `number` ≥ 1."""
    return 1 << (number - 1).bit_length()
