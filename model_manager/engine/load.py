"""millrace's own engine, loaded: the back end `torch`."""

from __future__ import annotations

import os
from pathlib import Path

from ..wire.config import ModelConfig
from ..wire.imports import importing
from .interface import Engine


def import_engine() -> None:
    """Import what an engine needs whatever its model is: seconds. Touches no device, starts no thread of torch."""
    # Read when torch loads its OpenMP. Threads that spin while they wait starve those they wait for as soon as another
    # process wants a core, and Beam's workers do.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with importing():
        from . import assembly  # noqa: F401


def load(config: ModelConfig, folder: Path) -> Engine:
    """The engine of a model's folder, ready to run; raises ModelError or ConfigError."""
    import_engine()
    from .assembly import assemble

    return assemble(config, folder)
