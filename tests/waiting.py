"""Waiting for what another thread or process brings about."""

import time
from collections.abc import Callable
from typing import Any

_WITHIN = 300.0
"""Seconds, on a machine that may be very busy."""
_POLL = 0.02


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """What the condition gives once that is true; fails where it does not come about."""
    deadline = time.monotonic() + _WITHIN
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not come about: {what or condition}"
        time.sleep(_POLL)
    return value
