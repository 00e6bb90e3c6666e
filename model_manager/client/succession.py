"""How a client takes part where models change while a job runs: whose place its model takes, who is to follow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ..wire.config import ModelConfig


@dataclass(frozen=True)
class Succession:
    """Of one client; the default is of one that keeps its model."""

    group: str = ""
    """Clients of a group change models together: its requests wait, and move, while another model takes this one's
    place. Empty: they do not.
    """
    replaces: str = ""
    """The `EngineClient.key` of the model that is left for this one."""
    follow: Callable[[ModelConfig], None] | None = None
    """Called with the settings of the model that others of the group have gone to; on a thread that must not wait."""
    abandoned: threading.Event | None = None
    """Set by another thread to have `open` end, with RequestAborted."""


KEEPS_ITS_MODEL = Succession()
