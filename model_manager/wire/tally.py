"""A Counter without zeros: a kind whose count reaches 0 is removed."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

_Kind = TypeVar("_Kind")


class Tally(Counter[_Kind]):
    """Counts that rise and fall by `tally[kind] += 1` and `-= 1`; iterating gives the kinds that are there."""

    def __setitem__(self, kind: _Kind, count: int) -> None:
        """See dict; a count of zero takes the kind out."""
        if count:
            super().__setitem__(kind, count)
        else:
            self.pop(kind, None)
