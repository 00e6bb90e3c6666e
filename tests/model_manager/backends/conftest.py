"""Each engine in its own Python environment, made once and kept in the cache folder, as a user has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.model_manager.store.environments import environment_python, install
from millrace.model_manager.wire.backends import BACKENDS


@pytest.fixture(scope="session")
def engine_python() -> Callable[[str], Path]:
    """The Python of an engine's environment, which is installed if it is not there."""

    def found(name: str) -> Path:
        python = environment_python(name)
        return python if python.exists() else install(BACKENDS[name])

    return found
