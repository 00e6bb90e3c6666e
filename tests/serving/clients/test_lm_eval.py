"""lm-eval, the evaluation harness, over HTTP: the same numbers as on the model itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.model_manager.store import resolve
from tests.serving.clients.conftest import said_by
from tests.serving.servers import MODEL, Server

PROGRAM = Path(__file__).parent / "programs" / "with_lm_eval.py"


@pytest.mark.engines
def test_log_likelihoods_are_those_of_the_model_itself(
    real: Server, client_program: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    python = client_program("lm_eval")
    said_by(python, PROGRAM, f"{real.url}/v1", MODEL, str(resolve(MODEL)), str(tmp_path))
