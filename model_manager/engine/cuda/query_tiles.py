"""How a step's queries are cut into the tiles that one program each attends. Knows lengths alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..interface import Ints, StepInput


@dataclass(frozen=True)
class Tiles:
    """Tiles of two widths: narrow ones hold sequences of one or few tokens, wide ones pieces of prompts."""

    fields: Ints
    """[tiles, 3] row of the block tables, first token, number of tokens; the narrow ones come first."""
    num_narrow: int


def cut_tiles(step: StepInput, *, narrow: int, wide: int) -> Tiles:
    """Cut the step into tiles. A sequence of at most `narrow` tokens is one narrow tile; a longer one is cut into tiles
    of `wide` tokens.

    A sequence without context is padding: its tile has no tokens. Among tiles of one width, the tiles with the most
    context come first, so that the longest work begins earliest.
    """
    starts, counts = step.query_starts[:-1], np.diff(step.query_starts)
    order = np.argsort(-step.context_lens, kind="stable").astype(np.int32)
    few, many = order[counts[order] <= narrow], order[counts[order] > narrow]
    pieces = -(-counts[many] // wide)
    owner = np.repeat(many, pieces)
    offset = (np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * wide
    fields = np.empty((len(few) + len(owner), 3), np.int32)
    fields[:, 0] = np.concatenate([few, owner])
    fields[: len(few), 1] = starts[few]
    fields[len(few) :, 1] = starts[owner] + offset
    fields[: len(few), 2] = np.minimum(counts, step.context_lens)[few]
    fields[len(few) :, 2] = np.minimum(wide, counts[owner] - offset)
    return Tiles(fields, len(few))
