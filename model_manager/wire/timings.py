"""When things happened to a request: seconds from the manager's receipt of it, by the clock of who saw them."""

from __future__ import annotations

from typing import Literal

import msgspec


class Timings(msgspec.Struct, frozen=True):
    """Seconds from the manager's receipt of the request to the event named, as the engine that finished it saw it.

    For a request resumed after its engine's death, `queued` and `first_token` come from the engine that resumed it.
    """

    queued: float
    """First scheduled."""
    first_token: float
    """First token sampled (TTFT)."""
    finished: float
    """Last token sampled."""


class Setback(msgspec.Struct, frozen=True):
    """What held a request up, and did not end it."""

    what: Literal["engine_died", "sent_again", "manager_lost"]
    """Its engine died, its server did not answer a try, or its client lost the manager."""
    at: float
    """Seconds from the manager's receipt; where the manager was lost, from the submission."""
