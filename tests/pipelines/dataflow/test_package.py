"""The package for workers is built here and installed in clean environments."""

import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from apache_beam.runners.portability.stager import Stager

from millrace.model_manager.wire.backends import BACKENDS
from millrace.pipelines.dataflow.package import find_package
from tests.pipelines.clean_environments import ROOT, checkout_copied, clean_environment, install, pip

ENGINE_PACKAGES = BACKENDS["torch"].modules
LOADS = """
import json, sys
import millrace.pipelines.commands.job_commands, millrace.transforms
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.store import resolve
from millrace.pipelines.dataflow.package import find_package
from apache_beam.options.pipeline_options import PipelineOptions
folder = resolve("millrace-tiny")
places = [millrace.pipelines.__file__, millrace.transforms.__file__, str(folder)]
package = find_package(PipelineOptions([]))
print(json.dumps({"places": places, "ids": Tokenizer.load(folder).encode("Mexico"), "package": package.source,
    "files": {path.name: path.stat().st_size for path in folder.iterdir()}}))
"""
MAKES_A_WHEEL = """
import shutil, sys
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from millrace.pipelines.dataflow.package import find_package
options = PipelineOptions([])
with find_package(options).staged(options) as staged:
    (wheel,) = staged.view_as(SetupOptions).extra_packages
    shutil.copy(wheel, sys.argv[1])
"""


def loaded(python: Path, folder: Path) -> dict[str, object]:
    shown = subprocess.run([python, "-I", "-c", LOADS], cwd=folder, capture_output=True, text=True, check=True).stdout
    found: dict[str, object] = json.loads(shown)
    return found


def test_by_default_a_checkout_is_shipped_and_what_is_asked_for_wins(tmp_path: Path) -> None:
    package = find_package(PipelineOptions([]))
    assert (package.source, package.setup_file) == ("checkout", ROOT / "setup.py")
    options = PipelineOptions([])
    with package.staged(options) as staged:
        assert staged.view_as(SetupOptions).setup_file == str(ROOT / "setup.py")
    assert options.view_as(SetupOptions).setup_file is None
    assert find_package(PipelineOptions(["--setup_file=/x/setup.py"])).source == "asked for"
    assert (
        find_package(PipelineOptions([f"--extra_package={tmp_path}/beam_millrace-0.1.0.tar.gz"])).source == "asked for"
    )
    assert find_package(PipelineOptions(["--extra_package=other-1.0.tar.gz"])).source == "checkout"
    assert find_package(PipelineOptions(["--sdk_container_image=i"])).source == "image"


@pytest.mark.slow
def test_what_is_staged_works_in_a_clean_environment_and_can_be_staged_from_there(tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    staged.mkdir()
    checkout = checkout_copied(tmp_path)  # jobs of other tests build in the checkout, and use the same names
    archive = Path(Stager._build_setup_package(str(checkout / "setup.py"), str(staged)))
    python = clean_environment(tmp_path / "first")
    install(python, archive)
    found = loaded(python, tmp_path)
    assert all(str(place).startswith(str(tmp_path / "first")) for place in found["places"])  # type: ignore[attr-defined]
    embedded = ROOT / "model_manager/store/embedded/millrace-tiny"
    assert found["files"] == {path.name: path.stat().st_size for path in embedded.iterdir()}
    assert found["ids"]
    assert found["package"] == "installed"

    subprocess.run([python, "-I", "-c", MAKES_A_WHEEL, tmp_path], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("beam_millrace-*.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "__pycache__" in name or name.startswith("/")]
    second = clean_environment(tmp_path / "second")
    install(second, wheel)
    assert loaded(second, tmp_path) | {"places": 0} == found | {"places": 0}

    worker = clean_environment(tmp_path / "worker", without=ENGINE_PACKAGES)
    pip(second, "install", "--dry-run", "--no-build-isolation", str(wheel))  # seconds of reading what is installed
    for each in (archive, wheel):
        asked = pip(worker, "install", "--dry-run", "--no-build-isolation", str(each), check=False).stderr
        assert re.search(f"No matching distribution found for ({'|'.join(ENGINE_PACKAGES)})", asked), asked
