"""Guesses a sequence's next tokens from its earlier ones: prompt lookup, which needs no second model.

If the last few tokens have occurred earlier in prompt or output, the tokens that followed them there are the guess.
Knows token ids; not where they come from, nor whether a guess is right. Saxena, "Prompt Lookup Decoding" (2023).
"""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from ..interface import Ints, Longs
from ..scheduling.batch_table import BatchTable
from ..scheduling.sequence import Sequence

LONGEST_MATCH = 4
"""Most tokens of a match: longer matches predict hardly better than the most recent of these."""
SHORTEST_MATCH = 2
"""A single token recurs everywhere and predicts nothing."""


class PromptLookup:
    """A Drafter (drafts.py) that copies from each sequence's own tokens."""

    def __init__(self, table: BatchTable) -> None:
        self._table = table

    def draft(self, sequences: List[Sequence], counts: Longs) -> list[list[int]]:
        tokens, lengths = self._table.histories(sequences)
        return look_up(tokens, lengths, counts)


def look_up(
    tokens: Ints, lengths: Longs, counts: Longs, *, shortest: int = SHORTEST_MATCH, longest: int = LONGEST_MATCH
) -> list[list[int]]:
    """Guesses for S sequences, at most `counts[s]` for sequence s; none if the sequence's end has not occurred before.

    `tokens` is [S, W]; row s is a sequence of `lengths[s]` tokens (at least 1), the rest of the row is ignored. The
    search looks for an earlier copy of the sequence's last tokens: the longest copy of `shortest` to `longest` tokens,
    and the latest one if several are equally long. The tokens after the copy are the guess. A guess that reaches the
    sequence's end continues from its own beginning, so repetition is guessed to go on.
    """
    guesses: list[list[int]] = [[] for _ in counts]
    rows, starts = _places_after_matches(tokens, lengths, shortest, longest)
    steps = np.arange(counts.max(initial=0)) % (lengths[rows] - starts)[:, None]
    copied = tokens[rows[:, None], starts[:, None] + steps].tolist()
    for row, guess in zip(rows.tolist(), copied, strict=True):
        guesses[row] = guess[: counts[row]]
    return guesses


def _places_after_matches(tokens: Ints, lengths: Longs, shortest: int, longest: int) -> tuple[Longs, Longs]:
    """The rows that have a match, in order, and the position after the best match of each.

    One pass over all tokens finds where the last one occurs; only those places are compared further.
    """
    last = lengths - 1
    width = int(last.max(initial=0))
    same = tokens[:, :width] == tokens[np.arange(len(lengths)), last][:, None]
    rows, ends = np.divmod(np.flatnonzero(same), max(width, 1))  # several times as fast as nonzero
    earlier = ends < last[rows]
    rows, ends = rows[earlier], ends[earlier]
    depth = _agreement(tokens, last, rows, ends, longest)
    best = np.zeros(len(lengths), np.int64)
    np.maximum.at(best, rows, depth * (width + 1) + ends + 1)
    found = np.flatnonzero(best >= shortest * (width + 1))
    return found, best[found] % (width + 1)


def _agreement(tokens: Ints, last: Longs, rows: Longs, ends: Longs, longest: int) -> Longs:
    """How many tokens, at most `longest`, before each place equal the end of its row; the last one is known to."""
    depth = np.ones(len(rows), np.int64)
    for back in range(1, longest):
        reached = np.flatnonzero((depth == back) & (ends >= back))
        row, end = rows[reached], ends[reached]
        depth[reached] += tokens[row, end - back] == tokens[row, last[row] - back]
    return depth
