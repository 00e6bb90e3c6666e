"""A step's inputs, copied to the device in one transfer that the host does not wait for.

The arrays are packed into one int32 buffer whose place on the device never changes, so that a captured graph finds the
next step where it found the last one. Knows which arrays there are; not what a kernel does with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..interface import StepInput
from .query_tiles import Tiles

_ALIGNMENT = 4
"""int32 elements: each array starts at a multiple of 16 bytes, as vectorised loads need."""


@dataclass(frozen=True)
class PlacedStep:
    """A step on the device; every tensor is an int32 view of the one buffer."""

    token_ids: torch.Tensor
    """[T]"""
    positions: torch.Tensor
    """[T]"""
    slots: torch.Tensor
    """[T]"""
    tiles: torch.Tensor
    """[tiles, 3] narrow ones first."""
    num_narrow: int
    logits_rows: torch.Tensor
    """[L]"""
    hidden_rows: torch.Tensor
    """[H]"""
    sources: torch.Tensor
    """[T] or empty"""
    table_stride: torch.Tensor
    """[1] blocks in a row of `tables`: read on the device, so that it may differ from replay to replay."""
    tables: torch.Tensor
    """Block tables, row after row, to the end of the buffer."""


class StepBuffer:
    """The buffer, here and on the device; holds one step at a time."""

    def __init__(self, device: torch.device, *, max_tokens: int, max_seqs: int, max_blocks: int) -> None:
        """Room for steps of `max_tokens` tokens of `max_seqs` sequences with `max_blocks` blocks each."""
        size = _ALIGNMENT * 9 + 9 * max_tokens + max_seqs * max_blocks
        self._pinned = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=self._pinned)
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if self._pinned else None

    def place(self, step: StepInput, tiles: Tiles) -> PlacedStep:
        """Copy the step over; the one before it must not be read any more by work that is yet to be launched."""
        if self._copied is not None:
            self._copied.synchronize()  # the last step's copy; it is done, since that step has begun
        arrays: list[npt.NDArray[Any]] = [
            np.array([step.block_tables.shape[1]], np.int32),
            step.token_ids,
            step.positions,
            step.slots,
            tiles.fields.reshape(-1),
            step.logits_rows,
            step.hidden_rows,
            step.sources,
            step.block_tables.reshape(-1),
        ]
        spans = _spans([array.size for array in arrays])
        self._write(arrays, spans)
        stride, ids, positions, slots, fields, logits, hidden, sources, _ = (self._device[span] for span in spans)
        return PlacedStep(
            token_ids=ids,
            positions=positions,
            slots=slots,
            tiles=fields.view(-1, tiles.fields.shape[1]),
            num_narrow=tiles.num_narrow,
            logits_rows=logits,
            hidden_rows=hidden,
            sources=sources,
            table_stride=stride,
            tables=self._device[spans[-1].start :],
        )

    def _write(self, arrays: list[npt.NDArray[Any]], spans: list[slice]) -> None:
        host = self._host.numpy()
        for array, span in zip(arrays, spans, strict=True):
            host[span] = array
        end = spans[-1].stop
        self._device[:end].copy_(self._host[:end], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def _spans(sizes: list[int]) -> list[slice]:
    """Where each array lies."""
    spans, start = [], 0
    for size in sizes:
        spans.append(slice(start, start + size))
        start += -(-size // _ALIGNMENT) * _ALIGNMENT
    return spans
