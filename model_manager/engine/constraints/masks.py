"""Which tokens may come next in each row of a batch; computed for all rows in parallel, while the model runs.

Knows sequences' guides and rows; not what grammars say, nor what is sampled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Sequence as List
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLExecutor, LLMatcher

from ...grammars.guide import Mask
from ..sampling.logit_rows import MaskBits, mask_words
from ..scheduling.sequence import Sequence

_MOST_THREADS = 32


class Masks:
    """A mask for each row of the batch table; only rows whose sequences have guides count."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._bits: MaskBits = np.zeros((num_rows, mask_words(vocab_size)), np.uint32)
        self._executor: LLExecutor | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._filling: Future[None] | None = None
        self._begun: list[Sequence] = []

    def begin(self, sequences: Iterable[Sequence]) -> None:
        """Begin to compute the missing masks in other threads; nobody else may use the guides until `of` returns."""
        self._begun = self._missing(sequences)
        if self._begun:
            self._threads = self._threads or ThreadPoolExecutor(1, thread_name_prefix="masks")
            self._filling = self._threads.submit(self._fill, _places(self._begun))

    def of(self, sequences: Iterable[Sequence]) -> MaskBits:
        """All masks; the ones of these sequences are complete."""
        if self._filling is not None:
            self._filling.result()
            self._filling = None
            self._finish(self._begun)
            self._begun = []  # sequences may finish now, and free their grammars
        missing = self._missing(sequences)
        if missing:
            self._fill(_places(missing))
            self._finish(missing)
        return self._bits

    def _missing(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """The guides whose masks are missing; a mask that allows one known token is made here."""
        missing = []
        for sequence in sequences:
            guide = sequence.guide
            if guide is None or (guide.mask is not None and guide.mask.row == sequence.row):
                continue
            if guide.only is None:
                missing.append(sequence)
            else:
                self._bits[sequence.row] = 0
                self._bits[sequence.row, guide.only >> 5] = 1 << (guide.only & 31)
                guide.mask = Mask(sequence.row, is_single=True)
        return missing

    def _fill(self, places: list[tuple[LLMatcher, int]]) -> None:
        """The interpreter's lock is free meanwhile."""
        self._executor = self._executor or LLExecutor(min(_MOST_THREADS, len(os.sched_getaffinity(0))))
        self._executor.unsafe_compute_mask_ptr(
            places, self._bits.ctypes.data, self._bits.shape[1] * self._bits.itemsize, len(self._bits)
        )

    def _finish(self, sequences: List[Sequence]) -> None:
        rows = [sequence.row for sequence in sequences]
        for sequence in sequences:
            assert sequence.guide is not None
            bits = self._bits[sequence.row]
            if sequence.guide.matcher.is_error() or not bits.any():
                sequence.guide.fill(bits)
            else:
                sequence.guide.complete(bits)
        single = np.bitwise_count(self._bits[rows]).sum(axis=1) == 1
        for sequence, is_single in zip(sequences, single.tolist(), strict=True):
            assert sequence.guide is not None
            sequence.guide.mask = Mask(sequence.row, is_single)


def _places(sequences: List[Sequence]) -> list[tuple[LLMatcher, int]]:
    """The sequences with guides, and their rows."""
    return [(sequence.guide.matcher, sequence.row) for sequence in sequences if sequence.guide is not None]
