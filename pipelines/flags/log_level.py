"""`--verbose` and `--log_level`: what is logged."""

from __future__ import annotations

import argparse
from typing import Any

_LEVELS = ("debug", "info", "warning", "error")


def add_logging(group: Any) -> None:
    """Adds the flags, which `log_level` reads."""
    group.add_argument("--verbose", action="store_true", help="Log what happens, and show whole stack traces.")
    group.add_argument(
        "--log_level", choices=_LEVELS, default="warning", help="Least severe messages to log. Default: warning."
    )


def log_level(known: argparse.Namespace) -> str:
    """The level that the flags say."""
    return "info" if known.verbose and known.log_level == "warning" else str(known.log_level)
