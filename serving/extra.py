"""Whether the packages of the extra `serve` are installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from millrace.model_manager.wire.errors import ConfigError

PACKAGES = ("httptools", "prometheus_client", "python_multipart", "starlette", "uvicorn", "uvloop")


def check_extra(command: str, *packages: str) -> None:
    """Raises ConfigError, with the command that installs what is missing; `packages` by the names of their modules."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ConfigError(
            f"{command} runs on {', '.join(missing)}, which {sys.executable} lacks: pip install 'beam-millrace[serve]'"
        )
