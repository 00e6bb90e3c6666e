"""Each engine in its own Python environment, made once and kept in the cache folder, as a user has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model_manager.backends.environments import made, named


@pytest.fixture(scope="session")
def engine_python() -> Callable[[str], Path]:
    """The Python of an engine's environment, which is installed if it is not there."""

    def found(name: str) -> Path:
        if name not in named():
            pytest.skip("ENGINES names others")
        return made(name)

    return found
