"""How long to wait before the next try. Knows times; not what failed."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

FIRST = 0.5
"""Seconds, at most, before the second try; twice as many before each one after it."""
LONGEST = 30.0
"""Seconds, at most, that a client waits by itself."""
LEAST_BUSY = 0.1
"""Seconds, at least, before a server that says it is busy is asked again, whatever it says of the time."""
LONGEST_ASKED = 3600.0
"""Seconds, at most, that a server can ask for."""


def backoff(failures: int, draw: Callable[[], float] = random.random, *, least: float = 0.0) -> float:
    """Seconds to wait after so many failures, `least` or more: a random part of a time that doubles ("full jitter").

    `draw` gives 0 to 1. The randomness spreads out requests that failed together.
    Source: M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015.
    """
    return max(least, draw() * min(LONGEST, FIRST * 2.0 ** min(failures - 1, 16)))


def retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110: seconds, or a date); None if there is none to be read."""
    if header is None:
        return None
    text = header.strip()
    try:
        seconds = float(text) if text[:1].isdigit() and "," not in text else _until(text, now or datetime.now(UTC))
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, seconds), LONGEST_ASKED)


def _until(date: str, now: datetime) -> float:
    then = parsedate_to_datetime(date)
    return ((then if then.tzinfo else then.replace(tzinfo=UTC)) - now).total_seconds()
