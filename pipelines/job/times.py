"""Times as people read them. Imports no Beam: `millrace top` shows them too."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """h:mm:ss, or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
