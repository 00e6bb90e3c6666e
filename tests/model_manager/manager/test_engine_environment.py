"""What an inference process finds in its environment."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

import pytest

from millrace.model_manager.manager.launching import _variables, spawn
from millrace.model_manager.wire.config import ModelConfig

_SAYS = "import os, sys; sys.stderr.write(os.environ['TORCHINDUCTOR_CACHE_DIR'])"


def compiles_in() -> str:
    """Where torch's compiler keeps its files, in a process that is started as an engine."""
    config = ModelConfig(backend="fake")
    with contextlib.ExitStack() as stack:
        ours, theirs = (stack.enter_context(each) for each in socket.socketpair())
        process = stack.enter_context(spawn((sys.executable, "-c", _SAYS), theirs, config, _variables(config, ())))
        del ours
        return process.communicate()[1].decode()


def test_torchs_compiler_keeps_its_files_in_the_cache_folder_and_none_in_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert compiles_in() == str(tmp_path / "torchinductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert compiles_in() == "/elsewhere"
