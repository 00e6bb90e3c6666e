"""Fixtures of the command's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.model_manager.client.status import stop_models
from tests.pipelines.refusals import Refused


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of the test's own; no manager is left in it."""
    folder = tmp_path / "rt"
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(folder))
    yield folder
    stop_models(folder)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    return Refused(capsys)
