"""The running sequences in arrays, one row each, so that a step is packed without a loop over tokens.

Knows tokens, positions and blocks; not why a sequence gets its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..interface import Ints, Longs, StepInput
from ..sampling.logit_rows import NO_MASKS, SETTINGS, MaskBits, SamplingRows, settings_of
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sequence's share of one step: its next `num_tokens` uncomputed tokens, drafts last."""

    sequence: Sequence
    num_tokens: int
    drafts: tuple[int, ...] = ()
    """Guesses of the tokens after its last one; logits are wanted for that one and for the drafts."""
    are_certain: bool = False
    """True if the constraint allows nothing but the drafts."""

    @property
    def completes(self) -> bool:
        """True if the sequence's last token is among the scheduled tokens."""
        return self.num_tokens - len(self.drafts) == self.sequence.num_remaining_tokens

    @property
    def num_logits(self) -> int:
        """Number of the scheduled tokens, counted from the last, whose logits are wanted."""
        return 1 + len(self.drafts) if self.samples else 0

    def followed_by(self, drafts: List[int], *, are_certain: bool = False) -> Scheduled:
        """The same share with drafts."""
        return Scheduled(self.sequence, self.num_tokens + len(drafts), tuple(drafts), are_certain)

    @property
    def samples(self) -> bool:
        """True if a new token is sampled after the scheduled tokens."""
        return self.completes and self.sequence.generates

    @property
    def rows_read(self) -> range:
        """Which of the scheduled tokens need their final hidden states read."""
        reading = self.sequence.reading
        return range(0) if reading is None else reading.rows(self.sequence.num_computed_tokens, self.num_tokens)


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Positions `start` to `end - 1` of a running sequence and the drafts behind it, for a draft model to compute."""

    sequence: Sequence
    start: int
    end: int

    @property
    def reaches_end(self) -> bool:
        """True if the logits of its last position are wanted: no token is known after it."""
        return self.end >= self.sequence.num_tokens


class BatchTable:
    """One row for each running sequence: its tokens, its block table, its sampling parameters."""

    def __init__(self, num_rows: int, max_len: int, block_size: int) -> None:
        """`max_len` is the most tokens of a sequence; memory is touched only as far as sequences get."""
        self._block_size = block_size
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._tokens = np.zeros((num_rows, max_len), np.int32)
        self._blocks = np.zeros((num_rows, -(-max_len // block_size)), np.int32)
        self._settings = np.zeros(num_rows, SETTINGS)

    def enter(self, sequence: Sequence) -> None:
        """Give a row to a sequence that begins to run; it has its blocks."""
        row = sequence.row = self._free_rows.pop()
        self._tokens[row, : sequence.num_tokens] = sequence.token_ids
        self._blocks[row, : len(sequence.block_table)] = sequence.block_table
        self._settings[row] = settings_of(sequence.params, sequence.seed, sequence.num_prompt_tokens)

    def leave(self, sequence: Sequence) -> None:
        """Take the row back, while the sequence still has its blocks."""
        self._blocks[sequence.row, : len(sequence.block_table)] = 0
        self._free_rows.append(sequence.row)
        sequence.row = -1

    def add_block(self, sequence: Sequence) -> None:
        """Note the last block of a sequence's table, which is new."""
        last = len(sequence.block_table) - 1
        self._blocks[sequence.row, last] = sequence.block_table[last]

    def add_token(self, sequence: Sequence) -> None:
        """Note the last token of a sequence, which is new."""
        last = len(sequence.token_ids) - 1
        self._tokens[sequence.row, last] = sequence.token_ids[last]

    def add_drafts(self, sequence: Sequence, drafts: List[int]) -> None:
        """Store drafts after a sequence's tokens, until sampled tokens replace them."""
        end = len(sequence.token_ids)
        self._tokens[sequence.row, end : end + len(drafts)] = drafts

    def histories(self, sequences: List[Sequence]) -> tuple[Ints, Longs]:
        """Tokens of S sequences, a row each [S, length of the longest or more], and the sequences' lengths [S]."""
        rows, lengths = _columns([(sequence.row, sequence.num_tokens) for sequence in sequences])
        return self._tokens[rows, : lengths.max()], lengths

    def pack(self, batch: List[Scheduled], sampled: Any = None) -> StepInput:
        """The step's tokens, sequence after sequence, in the batch's order; `sampled` holds the pending tokens."""
        for scheduled in batch:
            if scheduled.drafts:
                self.add_drafts(scheduled.sequence, scheduled.drafts)
        rows, starts, counts, wanted = _columns(
            [(s.sequence.row, s.sequence.num_computed_tokens, s.num_tokens, s.num_logits) for s in batch]
        )
        sources = _sources(batch, np.cumsum(counts) - 1)
        return replace(
            self._pack(rows, starts, counts, wanted),
            hidden_rows=_rows_read(batch, np.cumsum(counts) - counts),
            adapters=_adapter_slots(batch),
            sampled=sampled if len(sources) else None,
            sources=sources,
        )

    def pack_ranges(self, ranges: List[TokenRange]) -> StepInput:
        """The tokens of a draft model's step, packed in the same way."""
        columns = [(s.sequence.row, s.start, s.end - s.start, int(s.reaches_end)) for s in ranges]
        return self._pack(*_columns(columns))

    def _pack(self, rows: Longs, starts: Longs, counts: Longs, wanted: Longs) -> StepInput:
        """`counts` tokens from `starts` on of the sequences in `rows`, with logits of the last `wanted` of each."""
        ends = np.cumsum(counts)
        positions = np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1])
        row_of = np.repeat(rows, counts)
        blocks = self._blocks[row_of, positions // self._block_size].astype(np.int64)
        most_blocks = -(-int((starts + counts).max()) // self._block_size)
        query_starts = np.zeros(len(rows) + 1, np.int32)
        query_starts[1:] = ends
        return StepInput(
            token_ids=self._tokens[row_of, positions].astype(np.int64),
            positions=positions,
            slots=blocks * self._block_size + positions % self._block_size,
            query_starts=query_starts,
            context_lens=(starts + counts).astype(np.int32),
            block_tables=self._blocks[rows, :most_blocks],
            logits_rows=_last_rows(ends, wanted),
        )

    def sampling(self, sequences: List[Sequence], ahead: int = 0, masks: MaskBits = NO_MASKS) -> SamplingRows:
        """The sampler's rows for the next token of each of these sequences, or for the one `ahead` drafts on; `masks`
        has a row for each of the table's.
        """
        rows, lengths = _columns([(sequence.row, sequence.num_tokens + ahead) for sequence in sequences])
        rules = [sequence.rules for sequence in sequences]
        guided = np.array([masks.size > 0 and sequence.guide is not None for sequence in sequences])
        return SamplingRows.of(
            self._settings[rows], self._tokens, rows, lengths, rules, masks, np.where(guided, rows, -1)
        )

    def check_integrity(self, running: List[Sequence]) -> None:
        """Assert that only the running sequences have rows, and that each row has its sequence's tokens and blocks."""
        rows = [sequence.row for sequence in running]
        assert sorted(rows + self._free_rows) == list(range(len(self._blocks)))
        for sequence in running:
            assert self._tokens[sequence.row, : len(sequence.token_ids)].tolist() == sequence.token_ids
            blocks = self._blocks[sequence.row].tolist()
            assert blocks[: len(sequence.block_table)] == sequence.block_table
            assert not any(blocks[len(sequence.block_table) :])
        assert not self._blocks[self._free_rows].any()


def _rows_read(batch: List[Scheduled], firsts: Longs) -> Longs:
    """The batch's rows that are read; `firsts` are the first rows of the sequences' shares."""
    parts = [first + np.array(rows) for first, rows in zip(firsts, (s.rows_read for s in batch), strict=True) if rows]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _sources(batch: List[Scheduled], lasts: Longs) -> Longs:
    """[T] for a pending token its row among the last step's samples, -1 for any other token; empty if none is pending.

    `lasts` are the last rows of the sequences' shares: a pending token is always its sequence's last.
    """
    pending = np.array([s.sequence.pending_row if s.sequence.num_pending_tokens else -1 for s in batch], np.int64)
    if pending.max(initial=-1) < 0:
        return pending[:0]
    sources = np.full(lasts[-1] + 1, -1, np.int64)
    sources[lasts] = pending
    return sources


def _adapter_slots(batch: List[Scheduled]) -> Ints:
    """[S] slot of each sequence's adapter; empty if none has one."""
    has_none = all(scheduled.sequence.adapter is None for scheduled in batch)
    return np.array([] if has_none else [scheduled.sequence.adapter_slot for scheduled in batch], np.int32)


def _last_rows(ends: Longs, counts: Longs) -> Longs:
    """The last `counts[s]` rows before each of [S] ends."""
    return np.repeat(ends - np.cumsum(counts), counts) + np.arange(counts.sum())


def _columns(records: list[tuple[Any, ...]]) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(np.array(records, np.int64).T)
