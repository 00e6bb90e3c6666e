"""Worker processes import a job's own packages, before packages that are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from tests.runners.targets import Servers, targets
from tests.servers.kafka import until

pytestmark = [pytest.mark.runners, pytest.mark.timeout(1800)]

_ON = [target for target in targets() if target.name in ("prism-process", "prism-external", "flink-embedded-batch")]


@pytest.fixture(scope="module")
def setup_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    (folder / "of_the_job.py").write_text("def answer():\n    return 42\n")
    (folder / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='of-the-job', version='1', py_modules=['of_the_job'])\n"
    )
    return folder / "setup.py"


def answered(folder: str) -> Any:
    """Runs in a worker."""
    import of_the_job  # type: ignore[import-not-found]

    (Path(folder) / "answer").write_text(f"{of_the_job.answer()} {of_the_job.__file__}")
    return of_the_job.answer()


@pytest.mark.parametrize("target", _ON, ids=lambda target: target.name)
def test_the_package_of_a_setup_file_is_imported_by_workers(
    target: Any, servers: Servers, setup_file: Path, tmp_path: Path
) -> None:
    flags = [*target.job_flags(servers), f"--setup_file={setup_file}", "--sdk_location=container"]
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        _ = pipeline | beam.Create([str(tmp_path)]) | beam.Map(answered)
    answer, path = (tmp_path / "answer").read_text().split()
    assert answer == "42"
    if target.name != "prism-process":  # which kills its workers: the next one clears up
        until(lambda: not Path(path).exists(), "the worker takes its packages with it")
    absent = subprocess.run([sys.executable, "-c", "import of_the_job"], capture_output=True, check=False)
    assert absent.returncode == 1
