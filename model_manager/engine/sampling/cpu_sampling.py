"""Sampling on a CPU: builds the record that tells the kernel where a step's rows and rules lie. Knows rows; not
sequences.
"""

from __future__ import annotations

import enum
import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ...wire.logprobs import LEAST, Logprobs
from ...wire.sampling import COLUMNS, SamplingParams
from ..cpu import vector_ops
from ..cpu.team import Kernel, Team
from ..interface import Longs
from . import cuts as sampling_cuts
from . import edits as sampling_edits
from . import kernel_record as sampling_record
from . import kernels as sampling_kernels
from . import vector_passes as sampling_vectors
from .kernel_record import Field, Float, Int, slot_bytes, thread_bytes
from .logit_rows import SETTINGS, Listed, SamplingRows
from .random_numbers import uniforms

UNREAD = {
    name: getattr(SamplingParams(), name)
    for name in COLUMNS
    if name.upper() not in {*Int.__members__, *Float.__members__}
}
"""Parameters that the kernel does not know, with the value that changes nothing."""
_SOURCES = (sampling_cuts, sampling_edits, sampling_kernels, sampling_record, sampling_vectors, vector_ops)


@dataclass(frozen=True)
class Sampled:
    """What the kernel writes for L rows."""

    token_ids: Longs
    """[L]"""
    status: Longs
    """[L] FINE, NOT_FINITE or IMPOSSIBLE."""
    own: npt.NDArray[np.float32]
    """[L] log-probability of the token, for rows that want it."""
    greedy: npt.NDArray[np.int64]
    """[L] 1 if the token is the likeliest by the logits alone."""
    top_token_ids: Longs
    """[L, most of any row] the likeliest tokens."""
    top: npt.NDArray[np.float32]
    """[L, most of any row] their log-probabilities."""

    @classmethod
    def unwritten(cls, count: int, most: int) -> Self:
        """Room for `count` rows with up to `most` likeliest tokens."""
        tokens, status, greedy = np.zeros((3, count), np.int64)
        top_token_ids, top = np.zeros((count, most), np.int64), np.zeros((count, most), np.float32)
        return cls(tokens, status, np.zeros(count, np.float32), greedy, top_token_ids, top)

    def logprobs(self, row: int, count: int) -> Logprobs:
        """The log-probabilities of a row that wants `count` alternatives."""
        own = max(float(self.own[row]), LEAST)
        ids, top = self.top_token_ids[row, :count].tolist(), np.maximum(self.top[row, :count], LEAST).tolist()
        return Logprobs([own], [bool(self.greedy[row])], [ids] if count else [], [top] if count else [])


class CpuSampling:
    """The compiled kernel and its memory."""

    def __init__(self, num_threads: int) -> None:
        self._kernel = _kernel()
        self._team = Team(num_threads)
        self._vocab_size = 0
        self._slots = np.zeros((0, 0), np.uint8)

    @staticmethod
    def takes(rows: SamplingRows) -> bool:
        """Whether the kernel knows each parameter that these rows set."""
        return all((rows.settings[name] == default).all() for name, default in UNREAD.items())

    def sample(self, logits: npt.NDArray[np.float32], rows: SamplingRows) -> Sampled:
        """Sample [L, V] logits, each row without gaps; they stay as they are."""
        count, vocab_size = logits.shape
        self._make_room(vocab_size)
        record = np.zeros(len(Field), np.int64)
        most = max(0, int(rows.settings["num_logprobs"].max(initial=0)))
        sampled = Sampled.unwritten(count, min(most, vocab_size))
        arrays: dict[Field, npt.NDArray[Any]] = {
            Field.INTS: _ints(rows, vocab_size),
            Field.FLOATS: _floats(rows),
            Field.TOKENS: rows.tokens,
            Field.OUT_TOKENS: sampled.token_ids,
            Field.OUT_STATUS: sampled.status,
            Field.OUT_OWN: sampled.own,
            Field.OUT_GREEDY: sampled.greedy,
            Field.OUT_TOP_IDS: sampled.top_token_ids,
            Field.OUT_TOP: sampled.top,
            Field.SLOTS: self._slots,
            Field.BIASED_STARTS: _starts(rows.biased, count),
            Field.BIASED_IDS: rows.biased.token_ids,
            Field.BIASED_VALUES: rows.biased.values,
            Field.ALLOWED_STARTS: _starts(rows.allowed, count),
            Field.ALLOWED_IDS: rows.allowed.token_ids,
            Field.BANNED_STARTS: _starts(rows.banned, count),
            Field.BANNED_IDS: rows.banned.token_ids,
            Field.MASKS: rows.masks,
        }
        for field, array in arrays.items():
            assert array.flags.c_contiguous, field
            record[field] = array.ctypes.data
        assert logits.strides[1] == logits.itemsize
        record[Field.LOGITS], record[Field.LOGITS_STRIDE] = logits.ctypes.data, logits.strides[0]
        record[Field.NUM_ROWS], record[Field.VOCAB_SIZE] = count, vocab_size
        record[Field.TOKENS_STRIDE], record[Field.TOP_STRIDE] = rows.tokens.shape[1], sampled.top.shape[1]
        record[Field.THREAD_BYTES], record[Field.MASK_WORDS] = self._slots.shape[1], rows.masks.shape[1]
        self._team.run(self._kernel, record.ctypes.data)
        return sampled

    def _make_room(self, vocab_size: int) -> None:
        if vocab_size != self._vocab_size:
            self._vocab_size = vocab_size
            self._slots = np.zeros((self._team.size, thread_bytes(vocab_size)), np.uint8)
            self._slots[:, :8].view(np.int64)[:] = slot_bytes(vocab_size)


@cache
def _kernel() -> Kernel:
    """The kernel, one per process."""
    return Kernel(sampling_kernels.sample_rows, [Path(inspect.getfile(module)) for module in _SOURCES])


def _take(table: npt.NDArray[Any], columns: type[enum.IntEnum], rows: SamplingRows) -> None:
    """Fill the columns that have the name of one of a row's settings."""
    for column in columns:
        if column.name.lower() in (SETTINGS.names or ()):
            table[:, column] = rows.settings[column.name.lower()]


def _ints(rows: SamplingRows, vocab_size: int) -> Longs:
    ints = np.empty((len(rows.lengths), len(Int)), np.int64)
    _take(ints, Int, rows)
    ints[ints[:, Int.TOP_K] >= vocab_size, Int.TOP_K] = 0
    ints[:, Int.NUM_LOGPROBS] = np.minimum(ints[:, Int.NUM_LOGPROBS], vocab_size)
    ints[:, Int.NUM_TOKENS] = rows.lengths
    ints[:, Int.TOKEN_ROW] = rows.token_rows
    ints[:, Int.MASK_ROW] = rows.mask_rows
    return ints


def _floats(rows: SamplingRows) -> npt.NDArray[np.float64]:
    floats = np.empty((len(rows.lengths), len(Float)), np.float64)
    _take(floats, Float, rows)
    floats[:, Float.UNIFORM] = uniforms(rows.settings["seed"], rows.index)
    return floats


def _starts(listed: Listed, count: int) -> Longs:
    """[L + 1] where each row's entries begin; the last is where all end."""
    return np.searchsorted(listed.rows, np.arange(count + 1)).astype(np.int64)
