"""Waiting for what another thread or process brings about."""

import time
from collections.abc import Callable
from typing import Any

_WITHIN = 300.0
"""Seconds, on a machine that may be very busy."""
_POLL = 0.02
_LONGEST_POLL = 0.1
_POLL_SHARE = 0.02
"""The pause before the next poll, as a share of the wait so far: polls take processor time from what they wait for."""


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """What the condition gives once that is true; fails where it does not come about."""
    begin = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - begin
        assert waited < _WITHIN, f"did not come about: {what or condition}"
        time.sleep(min(max(_POLL_SHARE * waited, _POLL), _LONGEST_POLL))
    return value
