"""Which tokens end a constrained output, beside those that its grammar knows. Knows tokens and masks only."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt


class Ends:
    """What ends one request's output."""

    def __init__(self, *, eos: Collection[int], stops: Collection[int], ignore_eos: bool) -> None:
        """`eos` tokens, which masks allow wherever the output may end, and `stops` end the output. With `ignore_eos`
        the former never come.
        """
        self._tokens = frozenset(stops) if ignore_eos else frozenset(eos) | frozenset(stops)
        self._added = sorted(set(stops) if ignore_eos else set(stops) - set(eos))
        self._removed = sorted(set(eos) - set(stops)) if ignore_eos else []

    def __contains__(self, token_id: int) -> bool:
        return token_id in self._tokens

    def complete(self, bits: npt.NDArray[np.uint32], *, may_end: bool) -> None:
        """Add the missing ends to a grammar's mask if the output `may_end`; remove tokens that never come."""
        for token in self._added if may_end else ():
            bits[token >> 5] |= np.uint32(1 << (token & 31))
        for token in self._removed:
            bits[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))
