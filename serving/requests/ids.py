"""New ids: of requests, answers and calls of tools."""

from __future__ import annotations

import random

_numbers = random.Random()


def new_id(prefix: str) -> str:
    """The prefix and 32 digits. Asking the system for each takes longer than the rest of a short answer's form."""
    return f"{prefix}{_numbers.getrandbits(128):032x}"
