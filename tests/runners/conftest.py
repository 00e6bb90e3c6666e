import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.model_manager.client.status import stop_models
from tests.runners.targets import Servers, servers_in


@pytest.fixture(scope="package")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The one runtime folder of this machine, for all workers of all runners; no manager is left in it."""
    folder = tmp_path_factory.mktemp("runners") / "rt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_RUNTIME_DIR", str(folder))
        patch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.01")  # before servers start, which pass it on to jobs
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("scratch")))
        patch.setattr(tempfile, "tempdir", None)
        patch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
        yield folder
        stop_models(folder)


@pytest.fixture(scope="package")
def servers(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    assert not runtime.exists(), "the environment is set, and nothing runs"
    with servers_in(tmp_path_factory.mktemp("servers")) as running:
        running.command.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -P -m millrace.pipelines.runners.sdk_worker "$@"\n'
        )
        running.command.chmod(0o755)
        yield running
