"""Paged attention on a CPU: the cache, and the record that tells a step's kernels where everything lies.

The kernels walk the block tables where the pages lie; nothing is gathered. Knows no model.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ..interface import Ints, Longs, StepInput
from ..paged_attention import AttentionOptions, CacheShape
from ..released_memory import give_back_tail
from . import attend_kernel, attention_record, records, store_kernel, vector_ops
from .attend_kernel import TILE_FIELDS
from .attention_record import AttentionField
from .team import Team, kernel

_SOURCES = (store_kernel, attend_kernel, attention_record, records, vector_ops)
"""What the kernels are made of."""
_TILE_ROWS = 32
"""Query rows (tokens x the heads that share a KV head) that one task attends together."""
_NARROW = 2
"""With at most so many query rows per KV head, a tile takes several KV heads; with more, each page is read often
enough.
"""
_TILES_PER_THREAD = 4
_EVERYTHING = 2**40
"""A window that no context reaches."""
_LOG2_E = math.log2(math.e)
"""The kernels' softmax is in base 2."""


def supports(shape: CacheShape) -> bool:
    """Whether the kernels take these sizes: float32 or bfloat16, kept or rounded to int8; a head dimension of 8 n."""
    formats = shape.dtype in (torch.float32, torch.bfloat16) and shape.rounded in (None, torch.int8)
    return formats and shape.head_dim % 8 == 0


class CpuAttention:
    """PagedAttention of Numba kernels; raises nothing once built."""

    def __init__(self, shape: CacheShape, num_threads: int) -> None:
        assert supports(shape), shape
        lanes = 16 if shape.block_size % 16 == 0 and shape.head_dim % 16 == 0 else 8
        variant = lanes, shape.dtype.itemsize, shape.stored.itemsize
        self._store = kernel(_SOURCES, store_kernel.store_kernel, *variant)
        self._attend = kernel(_SOURCES, attend_kernel.attend_kernel, *variant)
        self._team = Team(num_threads)
        self._kv_heads = shape.num_kv_heads
        self._heads_per_group = shape.num_heads // shape.num_kv_heads
        self.bytes_per_block = shape.bytes_per_block
        self._layer_bytes_per_block = shape.num_kv_heads * shape.bytes_per_page
        bytes_per_layer = shape.num_blocks * self._layer_bytes_per_block
        # not zeroed: the kernel then maps a page of it only when a block there is first written
        self._cache = torch.empty((shape.num_layers, bytes_per_layer), dtype=torch.uint8)
        self._layers = [self._cache[layer].data_ptr() for layer in range(shape.num_layers)]
        max_rows = max(_TILE_ROWS, self._heads_per_group, _NARROW * shape.num_kv_heads)
        stride = -(-attend_kernel.scratch_bytes(max_rows, shape.head_dim) // 64) * 64
        self._scratch = torch.empty(stride * self._team.size, dtype=torch.uint8)
        self._record = np.zeros(len(AttentionField), np.int64)
        self._placed: list[Longs] = []
        self._sinks: dict[int, torch.Tensor] = {}
        self._record[AttentionField.NUM_HEADS] = shape.num_heads
        self._record[AttentionField.NUM_KV_HEADS] = shape.num_kv_heads
        self._record[AttentionField.HEAD_DIM] = shape.head_dim
        self._record[AttentionField.BLOCK_SIZE] = shape.block_size
        self._record[AttentionField.PAGE_BYTES] = shape.bytes_per_page
        self._record[AttentionField.SCRATCH] = self._scratch.data_ptr()
        self._record[AttentionField.SCRATCH_STRIDE] = stride
        self._record[AttentionField.MAX_ROWS] = max_rows
        self._step: tuple[object, ...] = ()

    def begin(self, step: StepInput) -> None:
        tiles = _tiles(step, self._heads_per_group, self._kv_heads, self._team.size)
        slots, starts, lens, tables = (
            np.ascontiguousarray(array)
            for array in (step.slots, step.query_starts, step.context_lens, step.block_tables)
        )
        record = self._record
        record[AttentionField.SLOTS] = slots.ctypes.data
        record[AttentionField.NUM_TOKENS] = len(slots)
        record[AttentionField.TILES] = tiles.ctypes.data
        record[AttentionField.NUM_TILES] = len(tiles)
        record[AttentionField.QUERY_STARTS] = starts.ctypes.data
        record[AttentionField.CONTEXT_LENS] = lens.ctypes.data
        record[AttentionField.BLOCK_TABLES] = tables.ctypes.data
        record[AttentionField.TABLE_STRIDE] = tables.strides[0]
        batch = slice(AttentionField.SLOTS, AttentionField.TABLE_STRIDE + 1)
        for placed in self._placed:
            placed[batch] = record[batch]
            placed[AttentionField.STORE_COUNTER :] = 0
        self._step = (tiles, slots, starts, lens, tables)  # keeps the arrays alive until the next step

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        query, key, value = _rows(query), _rows(key), _rows(value)
        output = torch.empty(query.shape, dtype=query.dtype)
        addresses = [
            address for rows in (query, key, value) for address in (rows.data_ptr(), rows.stride(0) * rows.itemsize)
        ]
        record = self._record
        self._describe(record, layer, [*addresses, output.data_ptr()], options)
        record[AttentionField.STORE_COUNTER :] = 0
        address = record.ctypes.data
        self._team.run(self._store, address)
        self._team.run(self._attend, address)
        return output

    def place(
        self, layer: int, query: int, key: int, value: int, stride: int, output: int, options: AttentionOptions
    ) -> list[tuple[int, int]]:
        """Kernels and their record that do what `attend` does, in every step, for rows that stay at these addresses.

        `stride` is in bytes, from one token's heads to the next one's; `output` has no gaps.
        """
        record = self._record.copy()
        self._describe(record, layer, [query, stride, key, stride, value, stride, output], options)
        self._placed.append(record)
        return [(kernel.address, record.ctypes.data) for kernel in (self._store, self._attend)]

    def give_back(self, first_block: int) -> None:
        for layer in self._cache:
            give_back_tail(layer, first_block * self._layer_bytes_per_block)

    def _describe(self, record: Longs, layer: int, addresses: list[int], options: AttentionOptions) -> None:
        """Set the record's fields that differ between layers."""
        record[: AttentionField.CACHE + 1] = (*addresses, self._layers[layer])
        record[AttentionField.WINDOW] = options.window or _EVERYTHING
        record[AttentionField.SINKS] = self._sinks_address(options.sinks)
        record[AttentionField.SOFTCAP] = 0
        floats = record.view(np.float32)
        if options.softcap is None:
            floats[2 * AttentionField.SCALE] = options.scale * _LOG2_E
        else:
            floats[2 * AttentionField.SCALE] = options.scale / options.softcap
            floats[2 * AttentionField.SOFTCAP] = options.softcap * _LOG2_E

    def _sinks_address(self, sinks: torch.Tensor | None) -> int:
        """Address of a layer's sinks in base 2; a copy of them is kept."""
        if sinks is None:
            return 0
        key = sinks.data_ptr()
        if key not in self._sinks:
            self._sinks[key] = sinks.float() * _LOG2_E
        return self._sinks[key].data_ptr()


def _rows(states: torch.Tensor) -> torch.Tensor:
    """The same [T, heads, dim] with each token's heads lying together."""
    together = states.stride(2) == 1 and states.stride(1) == states.shape[2]
    return states if together else states.contiguous()


def _tiles(step: StepInput, group: int, kv_heads: int, threads: int) -> Ints:
    """[tiles, TILE_FIELDS] cutting every sequence's rows into pieces; most context first.

    Where few query rows share a KV head, a sequence that decodes is a tile with all its KV heads, or with so many that
    every thread has tiles; all others have one KV head a tile, and its pages are read ahead.
    """
    sequence, first, rows = _pieces(step, max(1, _TILE_ROWS // group))
    is_narrow = rows * group <= _NARROW
    together = kv_heads * int(np.count_nonzero(is_narrow)) // (_TILES_PER_THREAD * threads)
    heads = np.where(is_narrow, min(kv_heads, max(1, together)), 1)
    parts = -(-kv_heads // heads)
    piece, part = _numbered(parts)
    tiles = np.empty((len(piece), TILE_FIELDS), np.int32)
    tiles[:, 0], tiles[:, 1], tiles[:, 2] = sequence[piece], first[piece], rows[piece]
    tiles[:, 3] = part * heads[piece]
    tiles[:, 4] = np.minimum(heads[piece], kv_heads - tiles[:, 3])
    return tiles[np.argsort(-step.context_lens[tiles[:, 0]], kind="stable")]


def _pieces(step: StepInput, most_rows: int) -> tuple[Longs, Longs, Longs]:
    """Sequence, first row and number of rows of each piece of at most that many rows."""
    starts, counts = step.query_starts[:-1].astype(np.int64), np.diff(step.query_starts)
    sequence, piece = _numbered(-(-counts // most_rows))
    first = starts[sequence] + piece * most_rows
    return sequence, first, np.minimum(most_rows, starts[sequence] + counts[sequence] - first)


def _numbered(counts: np.ndarray[Any, Any]) -> tuple[Longs, Longs]:
    """Two arrays over all parts, where each i has counts[i] parts: the part's i, and its number within that i."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
