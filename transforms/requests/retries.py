"""Which runners try a bundle again that failed, and how long its requests, running or done, then wait for that.

A worker that was killed is started anew, its bundle comes again, and asks for the same requests; what was paid for them
is not paid twice as long as the manager, its engines and what they answered are still there.
"""

from __future__ import annotations

from typing import Any

from millrace.model_manager.wire.config import ManagerConfig

_LOCAL = ("DirectRunner", "FnApiRunner", "SwitchingDirectRunner", "BundleBasedDirectRunner")
_NEVER = frozenset((*_LOCAL, "InteractiveRunner", "PrismRunner", "OwnPrism"))
"""Runners that end a job with the first failure of a bundle."""

_PATIENT = {"linger": 120.0, "orphan_grace": 120.0}
"""Seconds; a runner that has to notice first that a machine is gone takes its time."""


def tries_again(runner: str | None) -> bool:
    """Whether the runner of that name, with its module or not, tries failed bundles again; None is the local one."""
    return runner is not None and runner.rsplit(".", 1)[-1] not in _NEVER


def manager_config(runner: str | None, given: dict[str, Any]) -> ManagerConfig:
    """What is given, and else what suits the runner; raises ConfigError for impossible values."""
    return ManagerConfig.parse({**(_PATIENT if tries_again(runner) else {}), **given})
