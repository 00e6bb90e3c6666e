"""Whether the packages of the extra `serve` are installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from millrace.model_manager.wire.errors import ConfigError

PACKAGES = ("httptools", "starlette", "uvicorn", "uvloop")


def check_serve_extra() -> None:
    """Raises ConfigError, with the command that installs what is missing."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ConfigError(
            f"serve runs on {', '.join(missing)}, which {sys.executable} lacks: pip install 'beam-millrace[serve]'"
        )
