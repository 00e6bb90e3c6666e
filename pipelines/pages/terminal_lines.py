"""Parts of a text as lines that fit a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

BETWEEN = "   "
"""Between two parts of a line."""


def filled(parts: Sequence[str], width: int) -> list[str]:
    """Parts as lines of at most `width` columns, as many in a line as fit. A part that is longer has its own line."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(lines[-1]) + len(BETWEEN) + cell_len(part) <= width:
            lines[-1] += BETWEEN + part
        else:
            lines.append(part)
    return lines
