"""Masks of the tokens that may come next in each row of a batch, computed for all rows in parallel to the model.

A step waits for masks a moment only; those that are late go on being computed.

Knows sequences' guides and rows; not what grammars say, nor what is sampled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from collections.abc import Sequence as List
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLExecutor, LLMatcher

from ...grammars.guide import Mask
from ..sampling.logit_rows import MaskBits, mask_words
from ..scheduling.sequence import Sequence

_MOST_THREADS = 32
_MOST_LATE = 4
"""Most batches of masks that are computed at a time."""
_PATIENCE, _PATIENCE_A_MASK = 0.005, 0.0002
"""Seconds of processor time that a step waits for masks, once the model has run: in all, and for each in addition. A
busy machine does not shorten it.
"""


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
            self._threads = self._threads or ThreadPoolExecutor(_MOST_LATE, thread_name_prefix="masks")
            self._filling = self._threads.submit(self._fill, _places(self._begun), self._bits)

    def late(self) -> tuple[List[Sequence], Future[None] | None]:
        """The sequences whose masks were begun and are not there in time, and what to wait for before their guides are
        used.
        """
        if self._filling is None or _ends_within(_PATIENCE + _PATIENCE_A_MASK * len(self._begun), self._filling):
            return [], None
        late, filling = self._begun, self._filling
        self._begun, self._filling = [], None
        self._bits = self._bits.copy()  # the late ones are written into the old one
        return late, filling

    def of(self, sequences: Iterable[Sequence]) -> MaskBits:
        """All masks; the ones of these sequences are complete."""
        if self._filling is not None:
            self._filling.result()
            self._filling = None
            self._finish(self._begun)
            self._begun = []  # sequences may finish now, and free their grammars
        missing = self._missing(sequences)
        if missing:
            self._fill(_places(missing), self._bits)
            self._finish(missing)
        return self._bits

    def _missing(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """The guides whose masks are missing; a mask that allows one known token is made here."""
        missing = []
        for sequence in sequences:
            guide = sequence.guide
            if guide is None or (guide.mask is not None and guide.mask.row == sequence.row):
                continue
            if guide.made is not None:
                self._bits[sequence.row] = guide.made
                guide.mask = Mask(sequence.row, int(np.bitwise_count(guide.made).sum()) == 1)
            elif guide.only is None:
                missing.append(sequence)
            else:
                self._bits[sequence.row] = 0
                self._bits[sequence.row, guide.only >> 5] = 1 << (guide.only & 31)
                guide.mask = Mask(sequence.row, is_single=True)
        return missing

    def _fill(self, places: list[tuple[LLMatcher, int]], bits: MaskBits) -> None:
        """The interpreter's lock is free meanwhile."""
        self._executor = self._executor or LLExecutor(min(_MOST_THREADS, len(os.sched_getaffinity(0))))
        self._executor.unsafe_compute_mask_ptr(places, bits.ctypes.data, bits.shape[1] * bits.itemsize, len(bits))

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


def _ends_within(seconds: float, filling: Future[None]) -> bool:
    """Wait until it has ended or this process has computed for so long; true if it ended, raises what it raised."""
    until = time.process_time() + seconds
    while time.process_time() <= until:
        try:
            filling.result(seconds)
        except TimeoutError:
            continue
        return True
    return filling.done()


def _places(sequences: List[Sequence]) -> list[tuple[LLMatcher, int]]:
    """The sequences with guides, and their rows."""
    return [(sequence.guide.matcher, sequence.row) for sequence in sequences if sequence.guide is not None]
