"""How much two texts have in common at their beginnings. Knows no tokens."""

from __future__ import annotations

from typing import AnyStr


def common_beginning(one: AnyStr, other: AnyStr) -> int:
    """In characters; of bytes, in bytes."""
    if other.startswith(one):
        return len(one)
    differ = (at for at, (here, there) in enumerate(zip(one, other, strict=False)) if here != there)
    return next(differ, min(len(one), len(other)))
