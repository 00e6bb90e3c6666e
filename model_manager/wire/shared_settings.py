"""Settings of an engine that all who use a model share, as the first one to ask for the model asked for them.

What a later one asked for and does not get is compared in the manager, logged in the client, shown at a job's end.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from model_manager.wire.config import SHARED_SETTINGS, ModelConfig


class UnmetSetting(msgspec.Struct, frozen=True):
    """A setting that a client asked for and does not get."""

    name: str
    asked: str | int | float | bool
    in_force: str | int | float | bool | None
    """None: whatever the engine chose."""

    def __str__(self) -> str:
        held = "the engine's choice" if self.in_force is None else self.in_force
        return f"{self.name}={held} (asked for: {self.asked})"


def unmet_settings(asked: ModelConfig, in_force: ModelConfig) -> list[UnmetSetting]:
    """Those outside the key that differ. One that is asked for at its default counts as not asked for."""
    default, unmet = ModelConfig(), []
    for name in SHARED_SETTINGS:
        wanted, held = getattr(asked, name), getattr(in_force, name)
        if wanted not in (held, getattr(default, name)):
            unmet.append(UnmetSetting(name, wanted, held))
    return unmet


def sentence(model: str, unmet: Iterable[UnmetSetting]) -> str:
    """For people."""
    return (
        f"{model} was loaded already, by whoever asked for it first, and runs with {', '.join(map(str, unmet))}; "
        "what this job asked for takes effect when the model is loaded anew (`millrace stop` unloads it)"
    )
