"""The flags of commands that only look at a manager: where it is."""

from __future__ import annotations

import argparse
from typing import Any

from millrace.model_manager.wire.config import PLACE_SETTINGS, ManagerConfig
from millrace.model_manager.wire.manager_place import ManagerPlace, manager_place

from .from_settings import add_settings, given


def add_place(group: Any) -> None:
    """--manager and --manager_key_file."""
    add_settings(group, ManagerConfig, leave_out=set(ManagerConfig.__struct_fields__) - set(PLACE_SETTINGS))


def place_of(flags: argparse.Namespace) -> ManagerPlace:
    """The place that they name, else the environment's; raises ConfigError."""
    return manager_place(ManagerConfig.parse(given(flags, PLACE_SETTINGS)))
