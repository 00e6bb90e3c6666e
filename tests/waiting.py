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
_COSTS = 10.0
"""The shortest pause before the next poll, in processor times of the last one."""


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """What the condition gives once that is true; fails where it does not come about."""
    begin = time.monotonic()
    value, cost = timed(condition)
    while not value:
        waited = time.monotonic() - begin
        assert waited < _WITHIN, f"did not come about: {what or condition}"
        time.sleep(max(min(max(_POLL_SHARE * waited, _POLL), _LONGEST_POLL), cost))
        value, cost = timed(condition)
    return value


def timed(look: Callable[[], Any]) -> tuple[Any, float]:
    """What a look gives, and the seconds to wait at least before the next one."""
    begin = time.thread_time()
    return look(), _COSTS * (time.thread_time() - begin)
