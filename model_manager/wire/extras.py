"""The packages of the extras `engine`, `serve`, `traces` and `s3`: which this Python lacks, and what installs them.

A machine that only submits jobs needs none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec

from .backends import BACKENDS
from .config import ModelConfig
from .errors import ConfigError, ModelLoadFailed

SERVE = ("httptools", "prometheus_client", "python_multipart", "starlette", "uvicorn", "uvloop")
"""The modules that `millrace serve` runs on."""
_TRACES = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def pip_install(extra: str) -> str:
    """The command that installs the packages of an extra."""
    return f"pip install 'beam-millrace[{extra}]'"


def lacking(modules: Iterable[str]) -> list[str]:
    """The modules that cannot be imported here."""
    return [name for name in modules if not _is_found(name)]


def check_serve_extra(command: str, *modules: str) -> None:
    """Raises ConfigError, with the command that installs what is missing, if this Python lacks one of the modules."""
    if missing := lacking(modules or SERVE):
        raise ConfigError(f"{command} needs {_are_lacking(missing, 'serve')}")


def check_traces_extra() -> None:
    """Raises ConfigError, with the command that installs what is missing, if this Python cannot send spans."""
    if missing := lacking(_TRACES):
        raise ConfigError(f"traces need {_are_lacking(missing[:1], 'traces')}")


def check_engine_extra(config: ModelConfig) -> None:
    """Raises ModelLoadFailed, with the command that installs what is missing, if this Python cannot run the engine."""
    backend = BACKENDS[config.backend]
    if missing := lacking(() if backend.packages else backend.modules):
        raise ModelLoadFailed(f"the engine needs {_are_lacking(missing, 'engine')}")


def _are_lacking(missing: list[str], extra: str) -> str:
    return f"{', '.join(missing)}, which {sys.executable} lacks: {pip_install(extra)}"


def _is_found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that it is in
        return False
