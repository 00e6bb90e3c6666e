"""What belongs to a runtime folder: what its manager says, its processes, and a model that a test holds there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.observing import ask
from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.messages import GetStatus, Status
from millrace.model_manager.wire.runtime import RuntimeDir

_ANSWER_WITHIN = 60.0
"""Seconds. A manager on a busy machine may stand still for longer than `read_status` waits."""


def status_of(runtime: Path) -> Status | None:
    """What the manager says, if there is one and it answers."""
    with contextlib.suppress(MillraceError):
        return ask(RuntimeDir(runtime), GetStatus(), Status, _ANSWER_WITHIN)
    return None


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of the test's own; no manager is left in it."""
    folder = tmp_path / "rt"
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(folder))
    yield folder
    stop_models(folder)


def processes_of(runtime: Path) -> Iterator[psutil.Process]:
    """All but this one; `info` has their cmdline. Reads the environments as they are: psutil parses each whole."""
    variable = os.fsencode(f"\0MILLRACE_RUNTIME_DIR={runtime}\0")
    for pid in psutil.pids():
        if pid != os.getpid() and variable in b"\0" + _environ(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                process.info = process.as_dict(["cmdline"])
                yield process


def _environ(pid: int) -> bytes:
    """As the kernel has it; empty if the process has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


EMBEDDED = ModelConfig(model=EMBEDDED_MODEL)


@contextlib.contextmanager
def model_loaded(runtime: Path, model: ModelConfig = EMBEDDED) -> Iterator[None]:
    """In the block, jobs of this folder find the model in memory: a client holds it from one job to the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_RUNTIME_DIR", str(runtime))
        with EngineClient.open(model):
            yield
        stop_models(runtime)
