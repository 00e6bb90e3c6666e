"""Clients' environments, and the embedded model served for them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.model_manager.client.status import stop_models
from tests.model_manager.backends.environments import made, named
from tests.serving.servers import Server, running


@pytest.fixture(scope="session")
def client_program() -> Callable[[str], Path]:
    """The interpreter of a client's environment, which is installed if it is not there."""

    def found(name: str) -> Path:
        if name not in named():
            pytest.skip("ENGINES names others")
        return made(name)

    return found


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded model."""
    runtime: Path = tmp_path_factory.mktemp("real") / "rt"
    try:
        with running(runtime, "--dtype", "float32") as server:
            yield server.wait_until_ready()
    finally:
        stop_models(runtime)


def said_by(*command: str | Path, cwd: Path | None = None) -> str:
    """What a client's program says; it fails where an answer is not what it should be."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=600)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-8000:]
    return ended.stdout
