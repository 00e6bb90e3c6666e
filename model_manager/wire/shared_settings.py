"""Settings that jobs share: whoever started the manager, or a model's engines, decided their settings.

What a later one asked for and does not get is compared in the manager, logged in the client, shown at a job's end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from .config import OWN_SETTINGS, PLACE_SETTINGS, SHARED_SETTINGS, ManagerConfig, ModelConfig

Settings = TypeVar("Settings", ModelConfig, ManagerConfig)


class UnmetSetting(msgspec.Struct, frozen=True):
    """A setting that a client asked for and does not get."""

    name: str
    asked: str | int | float | bool
    in_force: str | int | float | bool | None
    """None: whatever the engine chose."""

    def __str__(self) -> str:
        held = "the engine's choice" if self.in_force is None else self.in_force
        return f"{self.name}={held} (asked for: {self.asked})"


def unmet_settings(asked: Settings, in_force: Settings) -> list[UnmetSetting]:
    """The settings that differ; of a model only settings that are not part of its key.

    A setting that is asked for at its default counts as not asked for.
    """
    of_manager = [name for name in ManagerConfig.__struct_fields__ if name not in (*PLACE_SETTINGS, *OWN_SETTINGS)]
    names = SHARED_SETTINGS if isinstance(asked, ModelConfig) else of_manager
    default, unmet = type(asked)(), []
    for name in names:
        wanted, held = getattr(asked, name), getattr(in_force, name)
        if wanted not in (held, getattr(default, name)):
            unmet.append(UnmetSetting(name, wanted, held))
    return unmet


def sentence(model: str, unmet: Iterable[UnmetSetting]) -> str:
    """For people."""
    return (
        f"{model} is shared with whoever started it first, and runs with {', '.join(map(str, unmet))}; "
        "what this job asked for takes effect when all is started anew (`millrace stop` ends it; a manager at"
        " tcp:// is restarted with them)"
    )
