"""What an engine says of its failure, as part of one sentence of ours. Knows no engine."""

from __future__ import annotations

import textwrap


def one_line(said: object, most: int = 300) -> str:
    """The text of an error in one line of at most so many characters, cut between two words."""
    return textwrap.shorten(str(said), most, placeholder=" …")
