"""Fixtures of the command's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.model_manager.client.status import stop_models
from tests import quick_beam
from tests.pipelines.refusals import Refused
from tests.runtime_folders import runtime

__all__ = ["runtime"]

quick_beam.compute_once()


@pytest.fixture(scope="module")
def shared_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A runtime folder of the module's: jobs with `--linger` find the manager and the engine of those before them."""
    folder = tmp_path_factory.mktemp("shared") / "rt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_RUNTIME_DIR", str(folder))
        yield folder
    stop_models(folder)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    return Refused(capsys)
