"""Hand-made batches: the tokens that a step computes of each sequence, on blocks dealt at random."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from millrace.model_manager.engine.interface import Ints, StepInput


def deal_blocks(lengths: Seq[int], block_size: int, num_blocks: int, seed: int = 0) -> Ints:
    """[sequences, most blocks of any] a block table for each, scattered over the cache."""
    deck = np.random.default_rng(seed).permutation(num_blocks)
    counts = [-(-length // block_size) for length in lengths]
    assert sum(counts) <= num_blocks
    tables = np.zeros((len(lengths), max(counts)), np.int32)
    taken = 0
    for table, count in zip(tables, counts, strict=True):
        table[:count] = deck[taken : taken + count]
        taken += count
    return tables


def make_step(
    spans: Seq[tuple[int, int]], tables: Ints, block_size: int, tokens: Seq[Seq[int]] | None = None
) -> StepInput:
    """A step that computes positions start .. end - 1 of every sequence, with logits of each one's last token."""
    positions = [np.arange(start, end, dtype=np.int64) for start, end in spans]
    slots = [
        table[place // block_size].astype(np.int64) * block_size + place % block_size
        for table, place in zip(tables, positions, strict=True)
    ]
    ids = [np.zeros(len(p), np.int64) for p in positions]
    if tokens is not None:
        ids = [np.array(t, np.int64)[p] for t, p in zip(tokens, positions, strict=True)]
    starts = np.cumsum([0, *(len(p) for p in positions)], dtype=np.int32)
    return StepInput(
        token_ids=np.concatenate(ids),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        query_starts=starts,
        context_lens=np.array([end for _, end in spans], np.int32),
        block_tables=tables,
        logits_rows=(starts[1:] - 1).astype(np.int64),
    )
