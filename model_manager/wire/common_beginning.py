"""How much two texts, or two lists of tokens, have in common at their beginnings."""

from __future__ import annotations

from collections.abc import Sequence


def common_beginning(one: Sequence[object], other: Sequence[object]) -> int:
    """In elements: characters of texts, bytes of bytes."""
    if other[: len(one)] == one:
        return len(one)
    differ = (at for at, (here, there) in enumerate(zip(one, other, strict=False)) if here != there)
    return next(differ, min(len(one), len(other)))
